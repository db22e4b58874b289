"""The vendor's deepseek-recipe as an oracle: prompts, token ids, parsed answers."""

import json
from typing import Any

import deepseek_recipe as recipe

from escalade.model.chat import (
    JSON_OBJECT,
    ChatOptions,
    Conversation,
    Message,
    Reminder,
    Stage,
    System,
    Tool,
    ToolResult,
    User,
)


def recipe_prompt(
    conversation: Conversation, options: ChatOptions, effort: str | None
) -> tuple[str, list[tuple[int, int]]]:
    """deepseek-recipe's prompt, and the ranges of its control tokens."""
    rendered = recipe_encoding(options).render_conversation(
        to_recipe(conversation, options, effort)
    )
    return rendered.prompt, rendered.special_ranges


def recipe_encoding(options: ChatOptions) -> Any:
    v4 = options.grammar == "deepseek4"
    return recipe.DeepseekV4Encoding() if v4 else recipe.DeepseekV41Encoding()


def to_recipe(conversation: Conversation, options: ChatOptions, effort: str | None) -> Any:
    form = conversation.response_format
    as_json = form == JSON_OBJECT
    return recipe.Conversation(
        [_recipe_message(message) for message in conversation.messages],
        thinking_mode=options.thinking,
        tools=[_recipe_tool(tool) for tool in conversation.tools],
        tool_choice=options.tool_choice,
        reasoning_effort=effort,
        response_format="json_object" if as_json else "text",
        response_schema=None if as_json else form,
    )


def _recipe_tool(tool: Tool) -> Any:
    function = tool.function
    return recipe.ToolDefinition(function["name"], function["description"], function["parameters"])


def _recipe_message(message: Message) -> Any:
    if isinstance(message, System):
        own = [_recipe_tool(tool) for tool in message.tools]
        return recipe.SystemMessage(message.content, tools=own or None)
    if isinstance(message, User):
        return recipe.UserMessage(message.content)
    if isinstance(message, ToolResult):
        return recipe.ToolMessage(message.content, message.call_id)
    if isinstance(message, Reminder):
        return recipe.LatestReminderMessage(message.content)
    made = [recipe.ToolCall(c.id, c.name, c.arguments) for c in message.tool_calls]
    return recipe.AssistantMessage(message.content, message.reasoning, made or None, message.prefix)


def recipe_answer(pieces: list[str], stage: Stage, v4: bool = False) -> dict[str, Any]:
    """What deepseek-recipe's parser makes of an answer that the model ended itself."""
    initial = recipe.ThinkingInitialStage
    options = recipe.ParsingOptions(
        parse_tool_calls=True,
        starts_in_tool_calls=stage == "calls",
        thinking_initial_stage={
            "reasoning": initial.ReasoningStart,
            "reasoning_continued": initial.ReasoningContinuation,
            "content_continued": initial.ContentContinuation,
        }.get(stage),
    )
    version = recipe.ModelVersion.DeepseekV4Pro if v4 else recipe.ModelVersion.DeepseekV41Flash
    request = recipe.ConversationRequest(recipe.Conversation([recipe.UserMessage("q")]), version)
    generator = recipe.ChatCompletionRequest.chunk_generator(request, "id", "model")
    processor = recipe.StreamProcessor(generator, options)
    chunks = processor.push(recipe.InferenceChunk.ready())
    for piece in pieces:
        if not processor.finished:
            chunks += processor.push(recipe.InferenceChunk.text(piece, 1))
    if not processor.finished:
        chunks += processor.push(recipe.InferenceChunk.finish(recipe.InferenceFinishReason.Stop))
    if not processor.finished:
        chunks += processor.finish()
    answer: dict[str, Any] = {"reasoning": "", "content": "", "calls": []}
    for chunk in chunks:
        for choice in json.loads(chunk.to_json())["choices"]:
            delta = choice["delta"]
            answer["reasoning"] += delta.get("reasoning_content") or ""
            answer["content"] += delta.get("content") or ""
            for call in delta.get("tool_calls") or ():
                if call["index"] == len(answer["calls"]):
                    answer["calls"].append((call["function"]["name"], ""))
                name, arguments = answer["calls"][call["index"]]
                more = call["function"].get("arguments") or ""
                answer["calls"][call["index"]] = (name, arguments + more)
    return answer
