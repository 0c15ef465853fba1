"""Writes a bf16 checkpoint in the shape of Gemma 4 12B with seeded weights, and calibration samples for it.

usage: make_checkpoint.py FOLDER [--layers N] [--vocabulary N] [--samples N] [--length N] [--seed N]

What a quantization takes depends on shapes alone, so one block of random weights is repeated: 24 GB are written as fast
as the disk takes them. Every matrix begins at another place of the block, whose length shares no factor with a row's.
Norms are ones, which keeps all activations of the size of one.
"""
import argparse
import json
import os
import random

HIDDEN, FEED_FORWARD, HEADS = 3840, 15360, 16
BLOCK = 33554393  # weights of the block, a prime


def config(layers, vocabulary):
    return {
        "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "dtype": "bfloat16",
        "vocab_size": vocabulary, "hidden_size": HIDDEN, "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": layers, "num_attention_heads": HEADS, "num_key_value_heads": 8, "head_dim": 256,
        "global_head_dim": 512, "num_global_key_value_heads": 1, "attention_k_eq_v": True, "sliding_window": 1024,
        "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "final_logit_softcapping": 30.0,
        "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True,
        "layer_types": ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(layers)],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25}},
    }


def tensors(layers, vocabulary):
    """Name and shape, in the order of the file."""
    yield "model.embed_tokens.weight", (vocabulary, HIDDEN)
    yield "model.norm.weight", (HIDDEN,)
    for layer in range(layers):
        slides = layer % 6 != 5
        dim, keys = (256, 8) if slides else (512, 1)
        base = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"):
            yield f"{base}{norm}.weight", (HIDDEN,)
        yield base + "layer_scalar", (1,)
        yield base + "self_attn.q_norm.weight", (dim,)
        yield base + "self_attn.k_norm.weight", (dim,)
        yield base + "self_attn.q_proj.weight", (HEADS * dim, HIDDEN)
        yield base + "self_attn.k_proj.weight", (keys * dim, HIDDEN)
        if slides:
            yield base + "self_attn.v_proj.weight", (keys * dim, HIDDEN)
        yield base + "self_attn.o_proj.weight", (HIDDEN, HEADS * dim)
        yield base + "mlp.gate_proj.weight", (FEED_FORWARD, HIDDEN)
        yield base + "mlp.up_proj.weight", (FEED_FORWARD, HIDDEN)
        yield base + "mlp.down_proj.weight", (HIDDEN, FEED_FORWARD)


def random_block(source):
    """bf16 of either sign: the high byte (sign and all but one bit of the exponent) from a table, the low byte free."""
    # Magnitudes in [2^-7, 2^-5), [2^-9, 2^-7) and [2^-11, 2^-9): a deviation of about 0.015.
    shares = ((60, 80), (59, 36), (58, 12))
    table = bytes(sign | high for sign in (0, 128) for high, count in shares for _ in range(count))
    block = bytearray(2 * BLOCK)
    block[0::2] = source.randbytes(BLOCK)
    block[1::2] = source.randbytes(BLOCK).translate(table)
    return block


def write(folder, options):
    source = random.Random(options.seed)
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors(options.layers, options.vocabulary):
        size = 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    block = memoryview(random_block(source))
    with open(os.path.join(folder, "model.safetensors"), "wb", buffering=0) as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name, shape in tensors(options.layers, options.vocabulary):
            left = 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
            if len(shape) == 1:
                out.write(b"\x80\x3f" * shape[0])  # 1.0
                continue
            at = 2 * source.randrange(BLOCK)
            while left > 0:
                done = out.write(block[at:at + left])
                left, at = left - done, (at + done) % len(block)
    return end


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--vocabulary", type=int, default=262144)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.makedirs(options.folder, exist_ok=True)
    size = write(options.folder, options)
    with open(os.path.join(options.folder, "config.json"), "w", encoding="utf-8") as out:
        json.dump(config(options.layers, options.vocabulary), out, indent=1)
    ids = random.Random(options.seed + 1)
    with open(os.path.join(options.folder, "calibration.jsonl"), "w", encoding="utf-8") as out:
        for _ in range(options.samples):
            out.write(json.dumps([ids.randrange(options.vocabulary) for _ in range(options.length)]) + "\n")
    print(f"{options.folder}: {size / 1e9:.2f} GB of weights, {options.samples} samples of {options.length} tokens")


if __name__ == "__main__":
    main()
