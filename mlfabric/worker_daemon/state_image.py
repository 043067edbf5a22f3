"""Model and optimizer state as bytes: a header in JSON that says what lies where, and the tensors behind it.

The header's length comes first, in eight bytes. No pickle: whoever sends it can only set tensors and numbers.
"""

from __future__ import annotations

import json
from typing import Any

import torch

from mlfabric.errors import LayoutError

__all__ = ["read_state", "write_state"]

_LENGTH_BYTES = 8
_PLAIN = (bool, int, float, str, type(None))


def write_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> memoryview:
    """Return the values of all parameters and buffers, and all that the optimizer remembers of each parameter.

    Raises:
        LayoutError: the optimizer remembers something that is neither tensor nor number.
    """
    tensors = {f"model/{name}": value for name, value in model.state_dict().items() if torch.is_tensor(value)}
    plain: dict[str, Any] = {}
    for place, kept in optimizer.state_dict()["state"].items():
        for key, value in kept.items():
            name = f"state/{place}/{key}"
            if torch.is_tensor(value):
                tensors[name] = value
            elif isinstance(value, _PLAIN):
                plain[name] = value
            else:
                raise LayoutError(
                    f"{key} of the optimizer's state is a {type(value).__name__}; allowed: tensors, numbers"
                )
    entries = [(name, str(t.dtype).removeprefix("torch."), list(t.shape)) for name, t in tensors.items()]
    header = json.dumps({"tensors": entries, "plain": plain}).encode()
    pieces = [len(header).to_bytes(_LENGTH_BYTES, "little"), header, *map(_bytes_of, tensors.values())]
    return memoryview(b"".join(pieces))


def read_state(image: memoryview, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Install a state that :func:`write_state` made of the same model under the same optimizer.

    Raises:
        LayoutError: it is of another model, or malformed; nothing was changed.
    """
    try:
        tensors, plain = _parse(image)
        weights = {name.removeprefix("model/"): t for name, t in tensors.items() if name.startswith("model/")}
        state: dict[int, dict[str, Any]] = {}
        for name, value in (*tensors.items(), *plain.items()):
            if name.startswith("state/"):
                _, place, key = name.split("/", 2)
                state.setdefault(int(place), {})[key] = value
        own = {name: t for name, t in model.state_dict().items() if torch.is_tensor(t)}
        if own.keys() != weights.keys() or any(own[name].shape != t.shape for name, t in weights.items()):
            raise LayoutError("the state of a peer is of another model; all workers must train the same")
    except (ValueError, KeyError, AttributeError, TypeError, RuntimeError) as error:
        raise LayoutError(f"the state of a peer cannot be read: {error}") from error
    model.load_state_dict(weights, strict=False)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _parse(image: memoryview) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    at = _LENGTH_BYTES + int.from_bytes(image[:_LENGTH_BYTES], "little")
    header = json.loads(bytes(image[_LENGTH_BYTES:at]))
    tensors: dict[str, torch.Tensor] = {}
    for name, dtype_name, shape in header["tensors"]:
        dtype = getattr(torch, dtype_name)
        size_bytes = torch.Size(shape).numel() * dtype.itemsize
        data = torch.frombuffer(bytearray(image[at : at + size_bytes]), dtype=torch.uint8) if size_bytes else None
        flat = torch.empty(0, dtype=dtype) if data is None else data.view(dtype)
        tensors[name] = flat.reshape(shape)
        at += size_bytes
    return tensors, header["plain"]


def _bytes_of(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
