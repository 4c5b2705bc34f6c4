"""Small real tokenizers, made by the `tokenizers` library: byte-level BPE and a metaspace one with
byte fallback.
"""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

from yggrt.core.schema import TextInfo
from yggrt.text import Text

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'].strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}"
    "{% else %}{{ raise_exception('no role ' + message['role']) }}{% endif %}{% endfor %}"
)
CORPUS = [
    "the quick brown fox says two words and stops, then one more word follows",
    "user assistant system hello world im start end think tool call",
] * 4


def byte_level() -> Tokenizer:
    """GPT-2's kind: three special tokens, one added token that is not special, all 256 bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), "</think>"])
    return tokenizer


def metaspace(*, add_bos: bool = True) -> Tokenizer:
    """Llama-2's kind: BOS from the post-processor, a leading space that decoding drops, bytes as
    `<0x..>`.
    """
    base = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(CORPUS, BpeTrainer(vocab_size=200, show_progress=False))
    model = Tokenizer.from_str(trained.to_str())
    learned = sorted(model.get_vocab().items(), key=lambda item: item[1])
    vocab = {piece: index for index, piece in enumerate(base + [piece for piece, _ in learned])}
    merges = []
    for piece, _ in learned:
        for cut in range(1, len(piece)):
            if piece[:cut] in vocab and piece[cut:] in vocab:
                merges.append((piece[:cut], piece[cut:]))
                break
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    if add_bos:
        tokenizer.post_processor = TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    return tokenizer


def text_of(tokenizer: Tokenizer, **info: object) -> Text:
    return Text(
        TextInfo(tokenizer="tokenizer.json", **info),  # type: ignore[arg-type]
        tokenizer.to_str().encode(),
    )


def chatml_text() -> Text:
    return text_of(
        byte_level(),
        chat_template=CHATML,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )


def llama_text() -> Text:
    return text_of(metaspace(), chat_template=LLAMA, bos_token="<s>", eos_token="</s>")
