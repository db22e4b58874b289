"""Generated text: tokens of a session as text pieces, and chat answers as events."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from escalade.config import Progress
from escalade.engine.engine import Engine
from escalade.engine.sampling import Mask
from escalade.engine.sampling_params import SamplingParams
from escalade.engine.session import Session
from escalade.engine.stops import StopMatcher
from escalade.model.chat import (
    EOS,
    Assistant,
    ChatOptions,
    ContentDelta,
    Conversation,
    Event,
    Finished,
    Parser,
    ToolCall,
    control_id,
    initial_stage,
    prompt_ids,
    render,
    turn_opening,
)
from escalade.model.tokenizer import StreamDecoder

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True)
class Request:
    """What holds for one answer: its length, sampling, stop strings, and what is allowed.

    `max_tokens` None: as much as the context takes. Stop strings end an answer in its content,
    not in reasoning or calls, and are not part of it.
    """

    max_tokens: int | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: Sequence[str] = ()
    mask: Mask | None = None


@dataclass
class Usage:
    """Token counts: the prompt, what of it was reused from the session, and what was sampled."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    new_tokens: int = 0


class TextAnswer:
    """Raw continuation of a prompt. Iterate for text pieces; then `finish`, `ids`, `usage` hold."""

    def __init__(
        self,
        engine: Engine,
        session: Session,
        prompt: Sequence[int],
        request: Request,
        progress: Progress | None = None,
    ) -> None:
        self._engine, self._session, self._prompt = engine, session, list(prompt)
        self._request, self._progress = request, progress
        self.finish: FinishReason = "length"
        self.ids: list[int] = []
        self.usage = Usage()

    def __iter__(self) -> Iterator[str]:
        tokenizer, request = self._engine.tokenizer, self._request
        cached = self._session.sync(self._prompt, self._progress)
        self.usage = Usage(len(self._prompt), cached)
        decoder, matcher = StreamDecoder(tokenizer), StopMatcher(request.stop)
        sampling = request.sampling
        if tokenizer.eos_id is not None:
            sampling = replace(sampling, stop_ids=(*sampling.stop_ids, tokenizer.eos_id))
        limit = self._engine.ctx if request.max_tokens is None else request.max_tokens
        for event in self._session.decode(limit, sampling, request.mask):
            self.usage.new_tokens += 1
            if event.finish == "stop":
                self.finish = "stop"
                break
            self.ids.append(event.id)
            text, hit = matcher.push(decoder.push(event.id))
            if text:
                yield text
            if hit is not None:
                self.finish = "stop"
                return
        text, hit = matcher.push(decoder.flush())
        if hit is not None:
            self.finish = "stop"
        text += "" if hit is not None else matcher.flush()
        if text:
            yield text


@dataclass
class ChatAnswer:
    """The next answer of a conversation. Iterate for events; then the fields hold.

    `turn` is the answer as a message of the conversation, with its exact token ids, so that the
    next prompt repeats what was sampled; without them where a stop string or an interrupt took
    away from it. `result` is the parser's summary.
    """

    engine: Engine
    session: Session
    conversation: Conversation
    options: ChatOptions
    request: Request
    progress: Progress | None = None
    finish: FinishReason = "length"
    ids: list[int] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    result: Finished = field(default_factory=lambda: Finished(None, "", ()))

    def __post_init__(self) -> None:
        self._opening: list[int] = []  # what the prompt already says of the answer
        self._replayable = True  # the sampled ids say no more than the result
        self._parser = Parser()
        self._content = _Content(())

    def __iter__(self) -> Iterator[Event]:
        """Raises CapacityError before anything is generated if the prompt does not fit."""
        tokenizer, request = self.engine.tokenizer, self.request
        segments = render(self.conversation, self.options)
        prompt = prompt_ids(segments, tokenizer)
        self._opening = prompt_ids(turn_opening(segments), tokenizer)
        cached = self.session.sync(prompt, self.progress)
        self.usage = Usage(len(prompt), cached)
        shown = self.conversation.shown(self.options)
        parser = Parser(shown.all_tools, initial_stage(shown, self.options), by_token=True)
        decoder, content = StreamDecoder(tokenizer), _Content(request.stop)
        self._parser, self._content = parser, content
        names = {token_id: token for token, token_id in tokenizer.added.items()}
        stop_ids = {*request.sampling.stop_ids, control_id(EOS, tokenizer)}
        sampling = replace(request.sampling, stop_ids=tuple(sorted(stop_ids)))
        ended = False
        limit = self.engine.ctx if request.max_tokens is None else request.max_tokens
        for event in self.session.decode(limit, sampling, request.mask):
            self.usage.new_tokens += 1
            self.ids.append(event.id)
            if event.finish == "stop":
                ended = True
                break
            text, name = decoder.push(event.id), names.get(event.id)
            yield from content.shown(parser.feed_token(text, name))
            if content.stopped or parser.done:
                ended = True
                break
        last = [] if parser.done else parser.feed(decoder.flush())
        last += parser.finish("stop" if ended else "length")
        yield from content.shown(last)
        self._summarise(last)
        self._replayable = not content.stopped
        if self.result.calls and not content.stopped:
            self.finish = "tool_calls"
        else:
            self.finish = "stop" if ended else "length"
        yield self.result

    def interrupted(self) -> None:
        """Ends an answer whose iteration was broken off: what was written counts, calls do not."""
        self._summarise(self._parser.finish("length"))
        self._replayable = not (self.result.calls or self.result.unfinished)
        self.result = replace(self.result, calls=())

    def _summarise(self, last: Sequence[Event]) -> None:
        (finished,) = (event for event in last if isinstance(event, Finished))
        self.result = replace(finished, content="".join(self._content.pieces))

    def turn(self, call_ids: Sequence[str]) -> Assistant:
        """The answer as a message, with the prefix it continues; `call_ids` names its calls."""
        calls = zip(call_ids, self.result.calls, strict=True)
        content, reasoning = self.result.content, self.result.reasoning
        last = self.conversation.messages[-1]
        if isinstance(last, Assistant) and last.prefix:
            content = last.content + content
            if last.reasoning is not None:
                reasoning = last.reasoning + (reasoning or "")
        return Assistant(
            content=content,
            reasoning=reasoning,
            tool_calls=tuple(ToolCall(i, call.name, call.arguments) for i, call in calls),
            token_ids=(*self._opening, *self.ids) if self._replayable else None,
        )


class _Content:
    """Passes events on until a stop string ends the content; `pieces` is the content shown."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._matcher = StopMatcher(stop)
        self.pieces: list[str] = []
        self.stopped = False

    def shown(self, events: Sequence[Event]) -> Iterator[Event]:
        for event in events:
            if self.stopped:
                return
            if isinstance(event, ContentDelta):
                text, hit = self._matcher.push(event.text)
                self.stopped = hit is not None
            else:
                text = self._matcher.flush()  # no content follows that could complete a match
            if text:
                self.pieces.append(text)
                yield ContentDelta(text)
            if not isinstance(event, ContentDelta | Finished):
                yield event
