from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import pytest
from transformers import BartConfig as HFBartConfig
from transformers import MBartConfig

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.files import write_json
from bart.generation import GenerationConfig

CONFIGS = Path(__file__).parents[3] / "configs"


def test_defaults_are_transformers_bart_large() -> None:
    theirs = HFBartConfig().to_dict()
    ours = BartConfig().to_dict()
    assert {name: theirs[name] for name in ours if name in theirs} == {k: v for k, v in ours.items() if k != "pre_ln"}


@pytest.mark.parametrize("theirs", [HFBartConfig(d_model=64), MBartConfig(d_model=64)], ids=["bart", "mbart"])
def test_a_hub_config_loads_and_is_written_back_whole(theirs: HFBartConfig, tmp_path: Path) -> None:
    fields = json.loads(theirs.to_json_string(use_diff=False))
    (tmp_path / "config.json").write_text(json.dumps(fields))
    config = BartConfig.from_pretrained(tmp_path / "config.json")
    assert config.pre_ln == (fields["model_type"] == "mbart")
    assert {name: value for name, value in fields.items() if value is not None}.items() <= config.to_dict().items()
    write_json(tmp_path / "again.json", config.to_dict())
    assert BartConfig.from_pretrained(tmp_path / "again.json") == config


def test_unknown_fields_are_kept_and_settable() -> None:
    config = BartConfig(my_own_field=[1, 2])
    assert config.my_own_field == [1, 2]
    config.fp16 = False
    assert config.to_dict()["fp16"] is False
    for clone in (copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert clone == config
    with pytest.raises(AttributeError, match="no_such"):
        _ = config.no_such


@pytest.mark.parametrize(("misspelt", "meant"), [("droput", "dropout"), ("num_beam", "num_beams")])
def test_a_misspelt_field_is_an_error_that_names_both(misspelt: str, meant: str) -> None:
    with pytest.raises(InputError, match=f"'{misspelt}'.*'{meant}'"):
        BartConfig(**{misspelt: 3})
    with pytest.raises(InputError, match=f"'{misspelt}'.*'{meant}'"):
        setattr(BartConfig(), misspelt, 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("d_model", 0),
        ("d_model", 1000),  # not divisible by 16 heads
        ("encoder_layers", 2.0),
        ("dropout", 1.0),
        ("init_std", 0),
        ("eos_token_id", 60000),
        ("scale_embedding", 1),
        ("id2label", {"1": "bad", "2": "good"}),  # whose name for the first output nobody knows
    ],
)
def test_impossible_values_are_errors_that_name_field_and_value(name: str, value: object) -> None:
    expected = "encoder_attention_heads" if value == 1000 else name
    with pytest.raises(InputError, match=expected):
        BartConfig(**{name: value})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *(("{", "JSON"), ("[1]", "object"), ('{"d_modl": 3}', "d_model"), ("\xff", "JSON")),
        ('{"model_type": "bert", "type_vocab_size": 2}', "model_type 'bert'; allowed: 'bart' and 'mbart'"),
    ],
)
def test_unreadable_files_are_errors_that_name_the_file(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=rf"config\.json.*{message}"):
        BartConfig.from_pretrained(path)
    with pytest.raises(InputError, match=r"absent\.json: no such file"):
        BartConfig.from_pretrained(tmp_path / "absent.json")


def test_shipped_configs() -> None:
    cnn_dm, xsum, base, tiny = (
        BartConfig.from_pretrained(CONFIGS / f"config{name}.json") for name in ("", "_xsum", "_base", "_tiny")
    )
    assert (base.d_model, base.encoder_layers, base.encoder_ffn_dim, base.encoder_attention_heads) == (768, 6, 3072, 12)
    assert tiny.d_model <= 256
    for config in (cnn_dm, xsum):
        assert (config.d_model, config.vocab_size) == (1024, 50265)
        assert config.encoder_layers == config.decoder_layers == 12
    decoding = GenerationConfig.from_model_config(cnn_dm.to_dict())
    assert (decoding.num_beams, decoding.length_penalty, decoding.max_length, decoding.min_length) == (4, 2.0, 142, 56)
    assert (decoding.no_repeat_ngram_size, decoding.forced_bos_token_id, decoding.forced_eos_token_id) == (3, 0, 2)
    decoding = GenerationConfig.from_model_config(xsum.to_dict())
    assert (decoding.num_beams, decoding.max_length, decoding.min_length) == (6, 62, 11)
    assert decoding.no_repeat_ngram_size == 3
    assert decoding.forced_bos_token_id is None
