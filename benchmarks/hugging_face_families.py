"""More families of Hugging Face with open sizes, taken the whole way as hugging_face_networks.py takes its list.

    python benchmarks/hugging_face_families.py [NAME ...] [--keep DIR] [--layers 2]

ModernBERT, DeBERTa, OPT, BLOOM, Falcon, Mixtral, BART, mT5, DINOv2, SegFormer, HuBERT, WavLM and others, in small
configurations with random weights. A line each, and what stopped it where it goes not the whole way.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from hugging_face_networks import (
    BODY,
    HEADS,
    TEXT,
    VOCABULARY,
    WIDTH,
    Chosen,
    Input,
    Network,
    decoder,
    image,
    made,
    main,
    sizes_of,
    text,
    translation,
)

CONVOLUTIONS = {"conv_dim": (16, 16, 16), "conv_kernel": (10, 3, 3), "conv_stride": (5, 2, 2), "num_feat_extract_layers": 3}
SPEECH = {**TEXT, **CONVOLUTIONS, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
SIDE = {"attention_heads": HEADS, "ffn_dim": 64}
BOTH = {f"{part}_{key}": value for part in ("encoder", "decoder") for key, value in SIDE.items()}
IDS = Input("input_ids", ("batch", "source"), "ids")


class Pixels(torch.nn.Module):
    """A network of images whose outputs lie in what it returns, by name."""

    def __init__(self, net: torch.nn.Module, outputs: tuple[str, ...]) -> None:
        super().__init__()
        self.net, self.outputs = net, outputs

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = self.net(pixel_values=inputs[0])
        return tuple(getattr(found, name) for name in self.outputs)


def images(name: str, kind: str, outputs: tuple[str, ...], size: int, **settings: Any) -> Network:
    """Return a network of square images of one size."""
    inputs = (Input("pixel_values", ("batch", 3, size, size)),)
    sizes = sizes_of("batch", (1,), (3,), (2,))
    return Network(name, lambda: Pixels(made(kind, settings), outputs), inputs, outputs, sizes)


def sound(name: str, kind: str, settings: dict[str, Any]) -> Network:
    """Return sound of any length to letters."""
    inputs = (Input("input_values", ("batch", "samples")),)
    sizes = sizes_of("batch samples", (1, 400), (2, 1601), (3, 1000))
    return Network(name, lambda: Chosen(made(kind, settings), ("logits",), inputs), inputs, ("logits",), sizes)


def texts(layers: int) -> list[Network]:
    """Return encoders of texts."""
    body = {**TEXT, "num_hidden_layers": layers}
    bert = {**body, "type_vocab_size": 2, "pad_token_id": 0}
    near = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 16, "norm_rel_ebd": "layer_norm"}
    modern = {**body, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    return [
        text("ModernBERT", "ModernBertForMaskedLM", **modern, local_attention=8, global_attn_every_n_layers=2),
        text("DeBERTa", "DebertaV2ForSequenceClassification", **bert, **near, share_att_key=True),
        text("ELECTRA", "ElectraForSequenceClassification", **bert, embedding_size=16),
        text("ALBERT", "AlbertForSequenceClassification", **bert, embedding_size=16),
        text("MPNet", "MPNetForSequenceClassification", **body),
        text("XLM-R", "XLMRobertaForTokenClassification", **body),
        text("RoFormer", "RoFormerForTokenClassification", **bert, embedding_size=WIDTH),
        text("SqueezeBERT", "SqueezeBertForSequenceClassification", **bert, embedding_size=WIDTH),
        text("ConvBERT", "ConvBertForTokenClassification", **bert, embedding_size=WIDTH),
    ]


def decoders(layers: int) -> list[Network]:
    """Return decoders of texts."""
    body = {**TEXT, "num_hidden_layers": layers, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    grouped = {**body, "num_key_value_heads": 2}
    headed = {**grouped, "head_dim": WIDTH // HEADS}
    opt = {**body, "ffn_dim": 64, "word_embed_proj_dim": WIDTH, "do_layer_norm_before": True}
    bloom = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "n_layer": layers, "n_head": HEADS}
    falcon = {**body, "new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False}
    gptj = {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": layers, "n_head": HEADS, "n_positions": 128, "rotary_dim": 4}
    local = {"sliding_window": 64, "layer_types": ["full_attention"] * layers}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "experts_implementation": "batched_mm"}

    def one(name: str, kind: str, settings: dict[str, Any], heads: int = 2, *, is_masked: bool = False) -> Network:
        return decoder(name, kind, settings, layers=layers, heads=heads, is_masked=is_masked)

    return [
        one("OPT", "OPTForCausalLM", opt, HEADS, is_masked=True),
        one("BLOOM", "BloomForCausalLM", bloom, HEADS, is_masked=True),
        one("Falcon", "FalconForCausalLM", falcon, HEADS),
        one("GPT-NeoX", "GPTNeoXForCausalLM", body, HEADS),
        one("GPT-J", "GPTJForCausalLM", gptj, HEADS),
        one("StarCoder2", "Starcoder2ForCausalLM", {**grouped, "sliding_window": None}),
        one("OLMo", "OlmoForCausalLM", grouped),
        one("OLMo2", "Olmo2ForCausalLM", grouped),
        one("Cohere", "CohereForCausalLM", grouped),
        one("SmolLM3", "SmolLM3ForCausalLM", {**grouped, "no_rope_layer_interval": 2}),
        one("Phi-3", "Phi3ForCausalLM", {**grouped, "sliding_window": None}),
        one("Gemma 3", "Gemma3ForCausalLM", {**headed, **local}),
        one("StableLM", "StableLmForCausalLM", grouped),
        one("Granite", "GraniteForCausalLM", grouped, is_masked=True),
        one("Nemotron", "NemotronForCausalLM", grouped),
        one("Qwen2", "Qwen2ForCausalLM", grouped, is_masked=True),
        one("Mixtral", "MixtralForCausalLM", {**grouped, **experts, "sliding_window": None}),
    ]


def translations(layers: int) -> list[Network]:
    """Return encoders with decoders."""
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    bart = {"vocab_size": VOCABULARY, "d_model": WIDTH, **BOTH, "encoder_layers": layers, "decoder_layers": layers, **ends}
    t5 = {"vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": WIDTH // HEADS, "d_ff": 64, "num_layers": layers}
    t5 |= {"num_heads": HEADS, "decoder_start_token_id": 0, "attn_implementation": "eager"}
    marian = {**bart, "max_position_embeddings": 128}
    return [
        *translation("BART", "BartForConditionalGeneration", {**bart, "max_position_embeddings": 128}, layers, IDS, (9, 3, 40)),
        *translation("mT5", "MT5ForConditionalGeneration", t5, layers, IDS, (9, 3, 40)),
        *translation("Marian", "MarianMTModel", marian, layers, IDS, (9, 3, 40)),
        *translation("M2M100", "M2M100ForConditionalGeneration", marian, layers, IDS, (9, 3, 40))[:1],
    ]


def pictures(layers: int) -> list[Network]:
    """Return networks of images."""
    pixels = {**BODY, "num_hidden_layers": layers, "image_size": 32, "patch_size": 8}
    segformer = {"num_encoder_blocks": 2, "depths": [layers, 1], "sr_ratios": [4, 2], "hidden_sizes": [16, 32]}
    segformer |= {"num_attention_heads": [1, 2], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2]}
    return [
        image("DINOv2", "Dinov2ForImageClassification", **pixels),
        images("SigLIP", "SiglipVisionModel", ("last_hidden_state", "pooler_output"), 32, **pixels),
        image("ConvNeXt V2", "ConvNextV2ForImageClassification", hidden_sizes=[16, 32, 32, 32], depths=[layers, 1, 1, 1]),
        images(
            "SegFormer",
            "SegformerForSemanticSegmentation",
            ("logits",),
            64,
            **segformer,
            decoder_hidden_size=32,
            semantic_loss_ignore_index=255,
        ),
        image("DeiT", "DeiTForImageClassification", **pixels),
        image("BEiT", "BeitForImageClassification", **pixels, use_relative_position_bias=True, attn_implementation="eager"),
        image(
            "Swin V2",
            "Swinv2ForImageClassification",
            image_size=32,
            patch_size=2,
            embed_dim=16,
            depths=(layers, 2),
            num_heads=(2, 4),
            window_size=4,
        ),
        image(
            "PVT V2",
            "PvtV2ForImageClassification",
            image_size=32,
            hidden_sizes=[16, 16, 32, 32],
            depths=[1, 1, 1, 1],
            num_attention_heads=[1, 1, 2, 2],
        ),
        image("PoolFormer", "PoolFormerForImageClassification", hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1]),
    ]


def sounds(layers: int) -> list[Network]:
    """Return networks of sound."""
    body = {**SPEECH, "num_hidden_layers": layers, "pad_token_id": 0}
    return [
        sound("HuBERT", "HubertForCTC", body),
        sound("WavLM", "WavLMForCTC", {**body, "num_buckets": 32, "max_bucket_distance": 64}),
        sound("UniSpeech", "UniSpeechForCTC", body),
    ]


def networks(layers: int = 2) -> list[Network]:
    """Return all."""
    return [*texts(layers), *decoders(layers), *translations(layers), *pictures(layers), *sounds(layers)]


if __name__ == "__main__":
    sys.exit(main(networks, __doc__))
