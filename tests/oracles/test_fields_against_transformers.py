"""Fields of a config.json to which transformers 2 to 5 gave a meaning: what is read, what is kept without effect as
transformers 5 does, and what is refused because it means a network, or ids, that are not built here.

Both programs read the same folder; logits, generated ids and labels must be equal. A field that is read must change one
of them, and one that is kept must change none.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from bart.configuration.configuration_bart import BartConfig
from bart.errors import InputError
from bart.modeling.modeling_bart import BartForConditionalGeneration
from bert.configuration.configuration_bert import BertConfig
from bert.modeling.modeling_bert import BertForMaskedLM

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore::UserWarning")]
BART: dict[str, Any] = {
    "vocab_size": 24,
    "d_model": 8,
    **{"encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 12},
    **{"decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 16},
    "max_position_embeddings": 24,
}
BERT: dict[str, Any] = {
    **{"vocab_size": 24, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12},
    "max_position_embeddings": 20,
}
Case = tuple[str, object]
SHARED_KEPT: list[Case] = [
    ("task_specific_params", {"summarization": {"num_beams": 4, "max_length": 5}}),
    ("prefix", " "),
    ("torch_dtype", "float16"),  # both programs are asked for fp32
    ("dtype", "bfloat16"),
    ("tie_word_embeddings", True),
    ("pruned_heads", {}),
    ("quantization_config", None),
    ("position_embedding_type", "absolute"),
    ("position_embedding_type", None),
    ("output_hidden_states", True),
    ("output_attentions", True),
    ("classifier_dropout", 0.3),
    ("problem_type", "multi_label_classification"),
    ("label2id", {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}),
    ("bad_words_ids", None),
]
SHARED_REFUSED: list[Case] = [
    ("tie_word_embeddings", False),
    ("pruned_heads", {"0": [1]}),
    ("quantization_config", {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    ("id2label", ["a", "b"]),
    ("num_labels", "3"),
    ("problem_type", "ranking"),
]
BART_READ: list[Case] = [
    ("scale_embedding", True),
    ("activation_function", "relu"),
    ("id2label", {"0": "no", "1": "yes"}),
    ("num_labels", 5),
    ("decoder_start_token_id", 5),
    ("decoder_start_token_id", None),  # the BOS id, in generation
    ("eos_token_id", 10),
    ("force_bos_token_to_be_generated", True),
    ("forced_bos_token_id", 9),
    ("forced_eos_token_id", None),
    ("forced_eos_token_id", 8),
    ("num_beams", 3),
    ("max_length", 6),
    ("no_repeat_ngram_size", 1),
    ("repetition_penalty", 4.0),
    ("bad_words_ids", [[5], [6], [7], [8], [10], [11]]),
]
BART_KEPT: list[Case] = [
    ("force_bos_token_to_be_generated", False),
    ("extra_pos_embeddings", 2),
    ("static_position_embeddings", False),
    ("add_final_layer_norm", False),
    ("normalize_before", False),
    ("normalize_embedding", True),
    ("add_bias_logits", False),
    ("do_blenderbot_90_layernorm", False),
    ("classif_dropout", 0.5),
    ("is_encoder_decoder", True),
    ("is_decoder", True),
    ("add_cross_attention", True),
    ("tie_encoder_decoder", False),
    ("eos_token_ids", [2]),
    ("hidden_size", 8),
    ("num_hidden_layers", 2),
    ("num_attention_heads", 2),
    ("layer_norm_eps", 0.1),
    ("typical_p", 1.0),
    ("num_beam_groups", 1),
    ("early_stopping", True),
    ("length_penalty", 2.0),
    *SHARED_KEPT,
]
BART_REFUSED: list[Case] = [
    ("extra_pos_embeddings", 1),
    ("static_position_embeddings", True),
    ("add_final_layer_norm", True),
    ("normalize_embedding", False),
    ("add_bias_logits", True),
    ("do_blenderbot_90_layernorm", True),
    ("is_encoder_decoder", False),
    ("tie_encoder_decoder", True),
    ("eos_token_ids", [9]),
    ("hidden_size", 16),
    ("num_hidden_layers", 1),  # transformers 2 to 4 built encoder_layers, and transformers 5 builds this
    ("num_attention_heads", 4),
    ("activation_function", "tanh"),
    *SHARED_REFUSED,
]
BERT_READ: list[Case] = [
    ("hidden_act", "relu"),
    ("layer_norm_eps", 0.1),
    ("id2label", {"0": "no", "1": "yes", "2": "perhaps"}),
    ("num_labels", 5),
]
BERT_KEPT: list[Case] = [
    ("is_decoder", False),
    ("add_cross_attention", False),
    ("is_encoder_decoder", False),
    ("embedding_size", 64),
    ("num_beams", 4),
    *SHARED_KEPT,
]
BERT_REFUSED: list[Case] = [
    ("is_decoder", True),
    ("add_cross_attention", True),
    ("position_embedding_type", "relative_key"),
    ("position_embedding_type", "relative_key_query"),
    ("hidden_act", "tanh"),
    *SHARED_REFUSED,
]
Result = tuple[Tensor, list[list[int]], list[str]]
IDS = torch.tensor([[0, 5, 6, 7, 23, 2], [0, 9, 2, 1, 1, 1]])


def randomised(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.5)
    return model.eval()


@pytest.fixture(scope="module")
def plain(folders: dict[str, Path]) -> dict[str, Result]:
    """The results without a change, for which both programs agree."""
    results = {name: ours(name, folder) for name, folder in folders.items()}
    assert all(is_same(result, theirs(name, folders[name])) for name, result in results.items())
    return results


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {name: tmp_path_factory.mktemp(name) for name in ("bart", "bert")}
    bart = randomised(transformers.BartForConditionalGeneration(transformers.BartConfig(**BART)))
    bart.save_pretrained(made["bart"])
    randomised(transformers.BertForMaskedLM(transformers.BertConfig(**BERT))).save_pretrained(made["bert"])
    (made["bart"] / "generation_config.json").unlink()
    return made


def with_fields(folder: Path, fields: dict[str, object], to: Path) -> Path:
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    content = json.loads((folder / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**content, **fields}))
    return to


def theirs(network: str, folder: Path) -> Result:
    kind = transformers.BartForConditionalGeneration if network == "bart" else transformers.BertForMaskedLM
    model = kind.from_pretrained(folder, dtype=torch.float32).double().eval()
    labels = list(model.config.id2label.values())
    with torch.no_grad():
        if network == "bert":
            return model(input_ids=IDS).logits, [], labels
        target = torch.tensor([[2, 0, 11, 12], [2, 0, 3, 2]])
        logits = model(input_ids=IDS, attention_mask=(IDS != 1).long(), decoder_input_ids=target).logits
    generated = model.generate(IDS, attention_mask=(IDS != 1).long())
    return logits, getattr(generated, "sequences", generated).tolist(), labels


def ours(network: str, folder: Path) -> Result:
    model = (BartForConditionalGeneration if network == "bart" else BertForMaskedLM).from_pretrained(folder).double()
    with torch.no_grad():
        if network == "bert":
            return model(IDS).logits, [], model.config.labels
        target = torch.tensor([[2, 0, 11, 12], [2, 0, 3, 2]])
        logits = model(IDS, (IDS != 1).long(), decoder_input_ids=target).logits
    return logits, model.generate(IDS, attention_mask=(IDS != 1).long()).tolist(), model.config.labels


def is_same(left: Result, right: Result) -> bool:
    return torch.allclose(left[0], right[0], rtol=0, atol=1e-9) and left[1:] == right[1:]


def cases(read: list[Case], kept: list[Case], network: str) -> list[tuple[str, str, object, bool]]:
    return [(network, *case, True) for case in read] + [(network, *case, False) for case in kept]


@pytest.mark.parametrize(
    ("network", "name", "value", "is_read"),
    cases(BART_READ, BART_KEPT, "bart") + cases(BERT_READ, BERT_KEPT, "bert"),
)
def test_what_is_read_and_what_is_kept(
    folders: dict[str, Path],
    plain: dict[str, Result],
    network: str,
    name: str,
    value: object,
    is_read: bool,
    tmp_path: Path,
) -> None:
    folder = with_fields(folders[network], {name: value}, tmp_path)
    actual = ours(network, folder)
    assert is_same(actual, theirs(network, folder))
    assert is_same(actual, plain[network]) is not is_read
    if not is_read and name not in BartConfig.aliases and value is not None:
        config = (BartConfig if network == "bart" else BertConfig).from_pretrained(folder / "config.json")
        assert config.to_dict()[name] == value


@pytest.mark.parametrize(
    ("config", "name", "value"),
    [(BartConfig, *case) for case in BART_REFUSED] + [(BertConfig, *case) for case in BERT_REFUSED],
)
def test_what_is_refused(config: type[BartConfig] | type[BertConfig], name: str, value: object) -> None:
    with pytest.raises(InputError, match=f"config field '{name}' is ") as error:
        config(**{**(BART if config is BartConfig else BERT), name: value})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("given", [{"hidden_size": 8}, {"num_hidden_layers": 2}, {"num_attention_heads": 2}], ids=str)
def test_a_field_under_its_second_name_alone(
    folders: dict[str, Path], plain: dict[str, Result], given: dict[str, object], tmp_path: Path
) -> None:
    content = json.loads((folders["bart"] / "config.json").read_text())
    [alias] = given
    folder = with_fields(folders["bart"], given, tmp_path)
    (folder / "config.json").write_text(json.dumps({**content, **given, BartConfig.aliases[alias]: None}))
    config = BartConfig.from_pretrained(folder / "config.json")
    assert getattr(config, alias) == given[alias] == getattr(transformers.BartConfig(**given), alias)
    assert is_same(ours("bart", folder), plain["bart"])


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 3, "decoder_start_token_id": 2, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1},
        {"_from_model_config": True, "force_bos_token_to_be_generated": True, "bos_token_id": 0, "max_length": 9},
        {"force_bos_token_to_be_generated": True, "bos_token_id": 0, "max_length": 9},
    ],
    ids=str,
)
def test_generation_config_json_goes_before_all_of_config_json(
    folders: dict[str, Path], options: dict[str, object], tmp_path: Path
) -> None:
    fields = {"force_bos_token_to_be_generated": True, "num_beams": 2, "no_repeat_ngram_size": 2, "max_length": 7}
    folder = with_fields(folders["bart"], fields, tmp_path)
    (folder / "generation_config.json").write_text(json.dumps(options))
    assert is_same(ours("bart", folder), theirs("bart", folder))


@pytest.mark.parametrize("again", [{}, {"forced_bos_token_id": None}, {"forced_bos_token_id": 7}], ids=str)
def test_what_an_old_config_forces_goes_through_our_files(
    folders: dict[str, Path], again: dict[str, object], tmp_path: Path
) -> None:
    fields = {"force_bos_token_to_be_generated": True, **again}
    folder = with_fields(folders["bart"], fields, tmp_path)
    model = BartForConditionalGeneration.from_pretrained(folder)
    assert model.generation_config.forced_bos_token_id == 0
    model.save_pretrained(tmp_path / "saved")
    expected = theirs("bart", folder)
    assert expected[1][0][1] == 0
    assert is_same(ours("bart", tmp_path / "saved"), expected)
    assert is_same(theirs("bart", tmp_path / "saved"), expected)


def test_pre_ln_of_transformers_3() -> None:
    assert BartConfig(normalize_before=True, add_final_layer_norm=True).pre_ln
    assert BartConfig(model_type="mbart", add_final_layer_norm=True).pre_ln
    assert not BartConfig(pre_ln=False, model_type="mbart").pre_ln
    for fields in (
        {"normalize_before": True, "add_final_layer_norm": False},
        {"model_type": "mbart", "add_final_layer_norm": False},
        {"model_type": "mbart", "normalize_before": False},
    ):
        with pytest.raises(InputError, match="go together; pre_ln asks for them"):
            BartConfig(**fields)


def test_an_mbart_whose_config_has_no_start_token_begins_with_the_bos_id(tmp_path: Path) -> None:
    model = randomised(transformers.MBartForConditionalGeneration(transformers.MBartConfig(**BART)))
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()).get("decoder_start_token_id") is None
    mask = (IDS != 1).long()
    expected = model.double().generate(IDS, attention_mask=mask, max_length=9)
    actual = (
        BartForConditionalGeneration.from_pretrained(tmp_path).double().generate(IDS, attention_mask=mask, max_length=9)
    )
    assert expected[0, 0] == 0
    assert torch.equal(actual, expected)
