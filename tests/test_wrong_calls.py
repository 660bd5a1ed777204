"""Sixty wrong commands: each ends in one line that says what is wrong, with status 2, and leaves nothing behind."""

from __future__ import annotations

import atexit
import importlib
import io
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from bart.configuration.configuration_bart import BartConfig
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bart.tokenization.tokenization_bart import BartTokenizer
from bert.configuration.configuration_bert import BertConfig
from bert.modeling.modeling_bert import BertModel
from tests.oracles.test_bert_against_transformers import SIZES
from tests.tiny_run import write_tiny_run
from utils.app.cli import run_main

ROOT = Path(__file__).parents[1]
TRAIN = (
    "finetune.py --do_train --config_path config.json --data_dir data --tokenizer tokenizer "
    "--model_name_or_path scratch --gpus 0 --output_dir run"
)
PRETRAIN = "run_pretraining.py --data_dir shards --config_path config.json --gpus 0 --output_dir run --max_steps 9"
SCORE = "run_eval.py model config.json data out --device cpu"
SUMMARIZE = "utils.summarize model --gpus 0"
RUN, EVAL = "scripts/run_summarization.sh", "scripts/run_eval_summarization.sh"
XSUM = "source ROOT/scripts/params/xsum_params.sh"

# What a user types, and what the line says. A name with dots is run by `python -m`.
COMMANDS = {
    # Options
    "finetune.py": "nothing to do: give --do_train, --do_predict or both",
    f"{TRAIN} --learning_rat 1e-4": "unknown argument --learning_rat; did you mean --learning_rate?",
    f"{TRAIN} --train_batch_size many": "--train_batch_size: 'many' is not allowed",
    f"{TRAIN} --train_batch_size 0": "--train_batch_size: '0' is not allowed",
    f"{TRAIN} --seed 4294967296": "it takes an integer at least 0, at most 4294967295",
    f"{TRAIN} --dropout 1.5": "--dropout: '1.5' is not allowed",
    f"{TRAIN} --lr_scheduler stairs": "--lr_scheduler: 'stairs' is not allowed",
    f"{TRAIN} --fp16 --bf16": "--fp16 and --bf16 exclude each other",
    f"{TRAIN} --fp16": "--fp16 needs a GPU; this run is on the CPU, which takes fp32",
    f"{TRAIN} --gpus 64": "--gpus is 64",
    f"{TRAIN} --accelerator gpu": "--accelerator is gpu and --gpus is 0",
    f"{TRAIN} --max_steps 0": "--max_steps: '0' is not allowed: it takes an integer at least -1, other than 0",
    f"{TRAIN} --max_steps 2 --warmup_steps 5": "--warmup_steps is 5; allowed: fewer than the run's 2 steps",
    f"{TRAIN} --n_val 0": "--n_val: '0' is not allowed: it takes an integer at least -1, other than 0",
    f"{TRAIN} --val_check_interval 3.5": "--val_check_interval is 3.5",
    f"{TRAIN} --val_metric bleu": "--val_metric is 'bleu'; allowed",
    f"{TRAIN} --max_source_length 65": "--max_source_length is 65; the model has 64 positions",
    f"{TRAIN} --task classify": "--task is 'classify'",
    f"{TRAIN} --task embedding": "Python file with a task; for vectors of texts, use sentence-transformers (docs/tasks",
    "utils.predict bare --task embedding": "--task is 'embedding'; allowed: summarization, translation, classification",
    "utils.predict bare": "bare is a BertModel, which is not fine-tuned; fine-tune it by finetune.py; for vectors of",
    "utils.predict bare --task classification": "bare is a BertModel, which is not fine-tuned; fine-tune it by finetun",
    "utils.serving.__main__ bare --port 0": "bare is a BertModel, which is not fine-tuned; fine-tune it by finetune.py",
    "utils.predict model --output a.npy": "--output is a.npy; allowed: .csv, .tsv, .jsonl, .parquet",
    f"{SCORE} --task tagging": "--task is tagging; model is a BartForConditionalGeneration; allowed: summarization, t",
    "utils.predict model --task classification": "--task is classification; model is a BartForConditionalGeneration",
    "utils.serving.__main__ model --port 0 --task tagging": "--task is tagging; model is a BartForConditionalGenerat",
    "utils.predict records.jsonl": "records.jsonl: neither a safetensors file nor a torch checkpoint",
    f"{TRAIN} --layers 0": "--layers is about --distill sft",
    f"{TRAIN} --config absent.yaml": "--config absent.yaml: cannot be read",
    f"{TRAIN} --config wrong.yaml": "--config wrong.yaml: unknown option 'learning_rat'; did you mean learning_rate?",
    f"{TRAIN} --wandb_project mine": "--wandb_project is mine; it needs the package wandb",
    f"{SCORE} --eval_beams 0": "--eval_beams: '0' is not allowed",
    f"{SCORE} --num_beam_groups 3": "unknown argument --num_beam_groups; leave it off",
    f"{SCORE} --batching x": "unknown argument --batching; leave it off: new articles take the places",
    f"{TRAIN} --compile": "unknown argument --compile; leave it off: ",
    f"{SCORE} --top_p 1.5": "--top_p is 1.5; allowed: above 0 and at most 1",
    f"{SCORE} --int8 --bf16": "--bf16 and --int8 exclude each other",
    f"{SCORE} --device gpu": "--device is 'gpu'; allowed: cpu, cuda",
    f"{SCORE} --n_obs 0": "--n_obs: '0' is not allowed: it takes an integer at least -1, other than 0",
    f"{SCORE} --json-summary no/such": "no/such'; allowed: a file in a directory that exists",
    "run_pretraining.py --max_steps 5": "the following arguments are required: --data_dir",
    f"{PRETRAIN} --do_train": "unknown argument --do_train",
    f"{PRETRAIN} --nvlamb": "--nvlamb is about --optimizer lamb",
    f"{PRETRAIN} --mlm_probability 2": "--mlm_probability: '2' is not allowed",
    f"{PRETRAIN} --load_model_weights_only": "--load_model_weights_only needs --resume_from_checkpoint",
    "run_eval.py model config.json data": "the following arguments are required: save_dir",
    f"{SUMMARIZE} --precision fp16": "--precision is fp16 and this would run on cpu",
    f"{SUMMARIZE} records.jsonl --output out.csv": "--output is out.csv; allowed: lines, such as a .txt; utils.predict",
    f"{SUMMARIZE} records.jsonl --output out.npy": "--output is out.npy; allowed: lines",
    f"{SUMMARIZE} --long_documents read": "--long_documents: 'read' is not allowed",
    # Files
    f"{TRAIN} --data_dir nowhere": "nowhere",
    f"{TRAIN} --data_dir absent.jsonl": "--data_dir absent.jsonl cannot be opened (no such file)",
    f"{TRAIN} --data_dir wrong.yaml": "data directory wrong.yaml: a file, but no table .jsonl, .json, .csv",
    "utils.predict model absent.csv --tokenizer nowhere": "absent.csv: no such file",
    PRETRAIN: "--data_dir shards: no manifest.json there",
    f"{PRETRAIN} --data_dir data": "--data_dir data: manifest.json is missing",
    f"{PRETRAIN} --data_dir records.jsonl": "--data_dir records.jsonl: manifest.json is missing, which shards",
    f"{PRETRAIN} --data_dir records.jsonl --tokenizer tokenizer": "records.jsonl: no text is left to train on",
    f"{PRETRAIN} --data_dir records.jsonl --task mlm --model_name_or_path model": "--task mlm: config.json: config",
    f"{PRETRAIN} --data_dir data --model_name_or_path model": "--data_dir data: no file there ends in .txt",
    f"{TRAIN} --data_dir blank": "train.source, line 2: blank line",
    f"{TRAIN} --config_path picture.png": "picture.png",
    f"{TRAIN} --tokenizer nowhere": "nowhere",
    f"{TRAIN} --output_dir config.json": "config.json: cannot be written",
    f"{TRAIN} --resume_from_checkpoint picture.png": "picture.png",
    "run_eval.py picture.png config.json data out": "picture.png",
    "run_eval.py model data data out --device cpu": "data",
    "utils.summarize nowhere": "nowhere",
    "utils.metrics.rouge data/test.target absent.txt": "absent.txt",
    "utils.metrics.rouge data/test.target data/train.target": "train.target",
    "utils.metrics.__main__ classification data/test.target data/train.target": "train.target",
    "utils.metrics.__main__ entities absent.conll data/train.target": "data/train.target",
    "utils.metrics.__main__ squad absent.json records.jsonl": "records.jsonl:1: question is None",
    "utils.metrics.__main__ rogue data/test.target data/train.target": "NAME is 'rogue'; allowed: rouge, bleu, class",
    "utils.corpora.prepare --input absent.jsonl --output new": "absent.jsonl",
    "utils.corpora.prepare --input records.jsonl --source_field body --output new": "body",
    "utils.corpora.inspect nowhere --tokenizer absent": "nowhere: no such file or directory",
    "utils.corpora.train_tokenizer --data_dir data --output_dir new --vocab_size 10": "give a whole number from 261",
    "utils.evaluation.report.building data": "data",
    # Presets and scripts
    f"{RUN} $({XSUM} && dgxa100_8gpu_fp61)": "0 positional values",
    f"{RUN} data config.json 0 1e-4 8 1 fp61": "PREC is 'fp61'; allowed where NUM_GPU is 0: bf16, fp32",
    f"{RUN} data config.json 0 1e-4 8 1 fp32 9 1 9 9 1 9 9 1 1 one": "one is one positional value too many",
    f"{RUN} data config.json 1 --max_source_length 64": "--max_source_length; give it by its place",
    EVAL: "0 positional values; a checkpoint and up to 8 more are expected",
    f"{EVAL} model 8 many": "NUM_GPU is 'many'",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a vocabulary, a config, a model, and what is none of these."""
    folder = tmp_path_factory.mktemp("wrong")
    write_tiny_run(folder)
    tokenizer = BartTokenizer.from_pretrained(folder / "tokenizer")
    BartForConditionalGeneration(BartConfig.from_pretrained(folder / "config.json")).save_pretrained(
        folder / "model", tokenizer
    )
    BertModel(BertConfig(**SIZES)).save_pretrained(folder / "bare")
    (folder / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 20)
    (folder / "wrong.yaml").write_text("learning_rat: 1")
    (folder / "records.jsonl").write_text('{"text": "a", "title": "b"}\n')
    (folder / "blank").mkdir()
    for split in ("train", "val", "test"):
        for side in ("source", "target"):
            (folder / "blank" / f"{split}.{side}").write_text("one\n\nthree\n")
    return folder


def one_line(error: str) -> str:
    """The one line of an error; log lines may stand before it."""
    assert "Traceback" not in error
    [line] = [line for line in error.splitlines() if "error: " in line]
    assert line == error.splitlines()[-1]
    return line


def files_of(place: Path) -> list[Path]:
    """All but the token cache, which the next run takes as it is."""
    return sorted(path for path in place.rglob("*") if ".cache" not in path.parts)


@pytest.mark.parametrize(("command", "message"), COMMANDS.items())
def test_a_wrong_command(
    command: str,
    message: str,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(place)
    at_exit: list[Callable[[], object]] = []
    monkeypatch.setattr(atexit, "register", lambda *call: at_exit.append(partial(*call)))
    before = files_of(place)
    program = command.split()[0]
    if program.endswith(".sh"):
        words = command.replace(program, f"bash {ROOT / program}", 1).replace("ROOT", str(ROOT))
        shell = {name: value for name, value in os.environ.items() if name != "RESULTS_DIR"}
        ended = subprocess.run(["bash", "-c", words], capture_output=True, text=True, env=shell)
        status, error = ended.returncode, ended.stderr
    else:
        module = importlib.import_module(program.removesuffix(".py"))
        monkeypatch.setattr(sys, "argv", [module.__file__, *shlex.split(command)[1:]])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"A dog sat.")))
        with pytest.raises(SystemExit) as stop:
            run_main(module.main)
        status, error = stop.value.code, capsys.readouterr().err
    for clean_up in at_exit:
        clean_up()
    line = one_line(error)
    assert message in line
    assert status == 2
    assert files_of(place) == before  # nothing is left behind
