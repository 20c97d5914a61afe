"""What to do about a miss, in a sentence. Knows causes and kinds of difference; quotes no text of a prompt."""

from __future__ import annotations

from typing import Final

from ..trace import Miss
from .explain_compare import Difference, Kind

_MOVE: Final = "Move what changes to the end of the last message, or leave it out."

_BY_KIND: Final[dict[Kind, str]] = {
    "timestamp": "{where} holds a time or date at character {at} that changes between requests. " + _MOVE,
    "random_id": "{where} holds a random id at character {at} that changes between requests. " + _MOVE,
    "number": "{where} holds a number at character {at} that changes between requests, such as a counter. " + _MOVE,
    "whitespace": "{where} differs in blanks or line breaks alone, from character {at} on. Build it the same "
    "way each "
    "time, and trim it in one place.",
    "unicode": "{where} has the same text in another Unicode form at character {at}. Normalize it once (NFC).",
    "case": "{where} differs in upper and lower case alone, from character {at} on.",
    "json_layout": "{where} has the same JSON with its keys in another order or layout. Write it with sorted "
    "keys and "
    "fixed separators.",
    "reordered": "{where} has the same things in another order, from character {at} on. Sort them, or keep the "
    "order of the request before.",
    "appended": "{where} is longer than before: something was put to its end. Put it into a new message "
    "instead, so that "
    "what stood after it is reused.",
    "cut": "{where} ends earlier than before. What comes after it has to be computed again.",
    "edited": "{where} was changed at character {at}. Keep what was said before as it was, and say what is new "
    "in a new "
    "message.",
    "new_text": "{where} is another text from character {at} on. A new question costs what it costs; if "
    "requests share a "
    "long text, put that before what differs.",
    "same": "{where} is the same.",
    "tools_reordered": "The same tools are told in another order. Sort them by name.",
    "tools_changed": "Other tools are told than before ({detail}). Tell all tools each time, and narrow the "
    "choice with "
    "tool_choice (allowed_tools).",
    "tool_edited": "The definition of {detail} has changed. Keep definitions fixed while a conversation goes on.",
    "arguments_layout": "The arguments of a call in {where} are written in another layout than the model's. "
    "Send them "
    "back as the model wrote them, byte for byte.",
    "arguments_changed": "The arguments of a call in {where} are not those that were sent before. Send calls back as "
    "they were.",
    "role_changed": "{where} says the same in another role ({detail}).",
    "history_truncated": "Older messages were dropped ({detail}), so all that follows stands elsewhere. Drop "
    "rarely and "
    "many at a time, at fixed points, rather than one each turn.",
    "message_inserted": "Messages were put in before the end ({detail}). Put what is new after all that was "
    "said before.",
    "messages_reordered": "The same messages come in another order.",
    "answer_changed": "{where} is not what the model said. Send answers back unchanged; 'history': "
    "'append_only' keeps "
    "their tokens.",
    "tokenization": "{where} has the same text, cut into other tokens. Send ids instead of text, or let the "
    "server keep "
    "the tokens of answers ('history': 'append_only').",
    "template": "The template writes something else here than before: look at chat_template_kwargs, "
    "add_generation_prompt and the number of messages.",
    "shorter": "This prompt ends where another one goes on: only its last tokens were computed.",
    "differs": "{where} goes on in another way than the nearest cached path, from character {at} on. The request on "
    "the other side is not remembered any more, so it is not known what was changed.",
    "longer": "All that was cached was reused; the rest is new.",
}

_BY_CAUSE: Final[dict[tuple[str, str], str]] = {
    ("cold", "empty"): "Nothing was cached yet: the first request always computes its whole prompt.",
    (
        "cold",
        "unlike",
    ): "No prompt that is cached begins like this one. Requests that share a text share its computation "
    "only if they begin with it.",
    ("cold", "goes_on"): "All that was cached was reused; the rest is new.",
    ("disabled", ""): "The prefix cache is switched off for this request or for the server.",
    ("in_flight", "sibling"): "Another request was computing the same tokens at that moment. Send the first "
    "alone, and "
    "the others when its first token has come; forks of a program do so by themselves.",
    ("limit", "last"): "Everything was reused: the last token is always computed.",
    ("limit", "prompt_logprobs"): "Prompt tokens that are scored have to be computed. Score fewer: set "
    "prompt_logprobs_from.",
    ("limit", "no_room"): "The prompt fits only if it holds on to nothing that is cached. A larger cache would help "
    "(--cache-tokens).",
    ("evicted", "superseded"): "This was the end of a text that became part of a longer one, which was evicted since.",
    ("evicted", "reset"): "The cache was emptied since.",
}


ELSEWHERE: Final = (
    "Another tenant or adapter has {tokens} of these tokens in the cache; namespaces share nothing. If they belong "
    "together, give them keys of one tenant."
)


def hint(miss: Miss, difference: Difference | None) -> str:
    """One or two sentences that say what it is and what can be done."""
    if miss.cause == "diverged" and difference is not None:
        return hint_for(difference)
    if miss.cause == "evicted" and miss.reason == "pressure":
        return (
            f"{miss.lost} tokens were here and were evicted {ago(miss.age_s)} ago to make room, "
            f"{ago(miss.idle_s)} after their last use. Name the run (X-Bosquet-Run) so that it is kept until it "
            "comes "
            "back, let fewer run at once, or give the cache more room (--cache-tokens, --disk-mb)."
        )
    return _BY_CAUSE.get((miss.cause, miss.reason), "")


def hint_for(difference: Difference) -> str:
    """What to do about a difference."""
    where = difference.part.label[:1].upper() + difference.part.label[1:]
    form = _BY_KIND[difference.kind]
    return form.format(where=where, at=difference.character, detail=difference.detail or "not the same")


def ago(seconds: float | None) -> str:
    """A span of time, rounded for people."""
    if seconds is None:
        return "some time"
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
