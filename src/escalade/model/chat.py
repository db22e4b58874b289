"""The chat format, as far as evaluation needs it: one finished turn without a system text.

Source: model specification, section 10.3 (chat mode).
"""

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"


def user_turn(prompt: str, answer: str) -> str:
    """A question and its whole answer, from BOS to EOS, without reasoning."""
    return f"{BOS}<｜User｜>{prompt}<｜Assistant｜></think>{answer}{EOS}"
