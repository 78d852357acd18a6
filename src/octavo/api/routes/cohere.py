"""Cohere's POST /v2/chat, below /cohere."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from octavo.api.dialects.bodies import chat_body, read_foreign
from octavo.api.dialects.cohere import NAMES, REFUSED, to_chat
from octavo.api.dialects.errors import in_terms_of
from octavo.api.faults import REQUEST_ID
from octavo.api.router import Router
from octavo.api.routes import turn
from octavo.api.routes.common import answer_foreign, state_of
from octavo.api.schema.cohere import CohereBody
from octavo.api.writers.cohere import FRAMING, CohereFold, CohereOptions, CohereStream

router = Router()


@router.post("/cohere/v2/chat")
async def chat(request: Request) -> Response:
    arrival = time.monotonic()
    state = state_of(request)
    body, warnings = await read_foreign(request, CohereBody, REFUSED)
    done = to_chat(body, state)
    own = str(request.scope[REQUEST_ID])
    with in_terms_of(NAMES):
        ours, notes = chat_body(state, done.chat)
        begun = await turn.begin(request, ours, client_id=own, arrival=arrival)
    warnings += [*done.notes, *notes, *begun.warnings]
    generation = begun.generation
    options = CohereOptions(id=own, usage=lambda: generation.usage, logprobs=body.logprobs)
    return await answer_foreign(
        request,
        generation,
        streams=body.stream,
        writer=CohereStream(options),
        fold=CohereFold(options),
        framing=FRAMING,
        warnings=warnings,
    )
