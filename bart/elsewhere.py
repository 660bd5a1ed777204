"""Names that transformers has and this project has not, with what to do instead; see docs/from_transformers.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bart.errors import InputError, in_short

_INSTEAD = {
    "call save_pretrained(FOLDER), then `hf upload ORG/NAME FOLDER`": "push_to_hub",
    "give a folder, or what `hf download NAME --local-dir FOLDER` brings": "cache_dir revision subfolder token variant",
    "call .to(device) on the loaded model": "device_map",
    "call for_inference('int8') on the loaded model": "quantization_config load_in_8bit load_in_4bit",
    "give new_head=True for a head with random weights": "ignore_mismatched_sizes",
    "leave it off; the device decides": "attn_implementation set_attn_implementation",
    "call model.encode(input_ids, attention_mask), which gives the states": "get_encoder",
    "use model.new_cache() and model.decode()": "get_decoder past_key_values",
    "call model.generate(); leave task_type of peft off": "prepare_inputs_for_generation",
    "all parts share get_input_embeddings().weight": "get_output_embeddings set_input_embeddings",
    "merge peft's adapters by merge_and_unload(), or train with --lora_rank": "add_adapter load_adapter",
    "give forced_bos_token_id, or a prefix_allowed_tokens_fn": "decoder_input_ids",
    "give stopping_criteria, a list": "max_time stop_strings",
    "call tokenizer(texts, padding=True, return_tensors='pt')": "pad encode_plus batch_encode_plus",
    "call tokenizer(text_target=texts, max_length=N)": "as_target_tokenizer max_target_length",
    "call tokenizer.add_tokens(tokens, special_tokens=True)": "add_special_tokens",
    "use tokenizer.get_vocab() and tokenizer.decode()": "convert_tokens_to_ids convert_ids_to_tokens",
    "call it input_ids": "inputs",
    "set it on the loaded tokenizer": "model_max_length",
    "set it in tokenizer_config.json": "add_prefix_space",
    "give padding='max_length', and a max_length that is a multiple": "pad_to_multiple_of",
    "leave it off; HF_HUB_OFFLINE=1 keeps off the network": "local_files_only",
    "set model.generation_config to one of transformers": "_from_model_config",
    "use transformers on the exported model": "hidden_states attentions cross_attentions encoder_hidden_states "
    "decoder_hidden_states encoder_attentions decoder_attentions output_hidden_states output_attentions "
    "compute_transition_scores",
}
INSTEAD = {name: what_to_do for what_to_do, names in _INSTEAD.items() for name in names.split()}

RECORDED = ("output_hidden_states", "output_attentions")  # fields of configs, too
# Those, and arguments that have no counterpart here, with the values at which they change nothing.
_NEUTRAL: dict[str, tuple[object, ...]] = dict.fromkeys(
    "position_ids encoder_attention_mask head_mask decoder_head_mask cross_attn_head_mask inputs_embeds "
    "decoder_inputs_embeds text_pair_target stride return_overflowing_tokens return_length return_special_tokens_mask "
    f"is_split_into_words synced_gpus force_download output_loading_info {' '.join(INSTEAD)}".split(),
    (None, False),
)
_ANY = "use_cache verbose low_cpu_mem_usage safe_serialization use_fast use_safetensors trust_remote_code"
_NEUTRAL |= dict.fromkeys(_ANY.split(), (None, 0, 1)) | {"weights_only": (None, True), "padding_side": (None, "right")}
_NEUTRAL |= {"return_attention_mask": (None, True), "return_token_type_ids": (None,), "add_prefix_space": (None,)}


def missing(owner: object, name: str) -> AttributeError:
    """The error for an attribute that an object lacks."""
    return AttributeError(f"{type(owner).__name__} has no {name}; {INSTEAD.get(name, 'docs/from_transformers.md')}")


def check_others(owner: str, known: Iterable[str], others: Mapping[str, Any]) -> None:
    """Raise InputError for arguments that are not known, but for transformers' at values that change nothing."""
    for name, value in others.items():
        if not isinstance(value, (bool, int, str, type(None))) or value not in _NEUTRAL.get(name, ()):
            what_to_do = INSTEAD.get(name, f"allowed: {', '.join(known)}" if known else "leave it off")
            raise InputError(f"{owner} got {name}, which is {in_short(value)}; {what_to_do}")


def take_others(owner: str, options: dict[str, Any]) -> None:
    """Take arguments of transformers without a counterpart here out of options; see `check_others`."""
    names = _NEUTRAL.keys() & options.keys() - {*RECORDED}
    check_others(owner, (), {name: options.pop(name) for name in names})
