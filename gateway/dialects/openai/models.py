"""The list of models as OpenAI's clients ask for it: GET /v1/models and GET /v1/models/{model}. There is one."""

from __future__ import annotations

import time
from typing import Any

from fastapi.responses import JSONResponse, Response
from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from gateway.dialects.openai.errors import model_not_found
from gateway.dialects.openai.http import options_route

PATH = "/v1/models"
MODEL_ID = "cosydit"


def routes() -> list[BaseRoute]:
    """Return the routes, ready to be added to an application; the model counts as created now."""
    model = {"id": MODEL_ID, "object": "model", "created": int(time.time()), "owned_by": MODEL_ID}

    async def list_models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [model]})

    async def show_model(request: Request) -> Response:
        return _shown(request.path_params["model"], model)

    one = f"{PATH}/{{model:path}}"
    return [
        Route(PATH, list_models, methods=["GET"]),
        Route(one, show_model, methods=["GET"]),
        options_route(PATH, "GET, HEAD"),
        options_route(one, "GET, HEAD"),
    ]


def _shown(name: str, model: dict[str, Any]) -> Response:
    return JSONResponse(model) if name == MODEL_ID else model_not_found(name, MODEL_ID)
