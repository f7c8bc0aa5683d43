"""The kinds of a step's layers: takes the numbers of a model, returns what conditions may ask of each of its layers.

    layer_kinds = {"dense": dense_layers}
    weights = {"model.layers.*.mlp.down_proj.weight": only(dense, linear([hidden_size, intermediate_size])), ...}

All layers have the same statements, and a kind is what differs: a name that is true in those layers that a number of the model
lists, as text: `dense_layers = "0,3"`. A model without that number has no layer of the kind. In the loop a condition may ask
for `dense` and for `previous.dense`, whether the layer before is of the kind; before the first there is none, so that is
false. Outside of the loop `previous.dense` is that of the last layer, as all that is `previous` there. A weight that is `only`
in some layers may be used by launches of no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tilec.step.declaration import Declaration, Declared
from tilec.step.expressions import PREVIOUS, StepError

FIRST: Final = "first_layer"
LAST: Final = "last_layer"
Flags = Mapping[str, bool]
"""What conditions may ask of a layer, by name."""

MAX_LAYERS: Final = 1 << 12


class LayerKinds:
    """The layers of a step: `count` of them, or of all that the model has the first, some inner ones and the last. StepError if
    the model has no number of layers, a list of layers that is none, or several kinds of which some would be left out."""

    def __init__(self, declaration: Declaration, values: Mapping[str, Any], count: int | None = None) -> None:
        layers = layer_count(values)
        listed = {kind: listed_layers(name, values, layers) for kind, name in declaration.kinds.items()}
        self._listed, self._every = listed, {kind for kind, found in listed.items() if len(found) == layers}
        self.several = any(0 < len(found) < layers for found in listed.values())
        """Whether layers differ in more than their place."""
        self.count = layers if count is None else count
        if self.several and self.count != layers:
            raise StepError(f"a step of {self.count} layers is asked for, and the model has {layers} of several kinds")

    def kinds(self, layer: int) -> Flags:
        """Of which kinds a layer is."""
        return {kind: kind in self._every or layer in listed for kind, listed in self._listed.items()}

    def flags(self, layer: int) -> Flags:
        """What conditions may ask in a layer."""
        before = self.kinds(layer - 1) if layer else dict.fromkeys(self._listed, False)
        return {FIRST: layer == 0, LAST: layer == self.count - 1, **self.kinds(layer), **_previous(before)}

    def outside(self) -> Flags:
        """What they may ask outside of the loop."""
        return _previous(self.kinds(self.count - 1)) if self._listed else {}

    def different(self) -> Iterator[Flags]:
        """What conditions may ask in some layer, each once."""
        seen: dict[tuple[bool, ...], Flags] = {}
        for layer in range(self.count):
            flags = self.flags(layer)
            seen.setdefault(tuple(flags.values()), flags)
        yield from seen.values()

    def has(self, declared: Declared, layer: int) -> bool:
        """Whether a layer has a weight or buffer."""
        return declared.only is None or (0 <= layer < self.count and bool(declared.only.value(self.kinds(layer))))

    def in_some(self, declared: Declared) -> bool:
        """Whether some layer has a weight or buffer."""
        return declared.only is None or any(self.has(declared, layer) for layer in range(self.count))


def layer_count(values: Mapping[str, Any]) -> int:
    """The number of layers; StepError if the model does not define it."""
    count = values.get("num_hidden_layers")
    if type(count) is not int or not 1 <= count <= MAX_LAYERS:
        raise StepError("`num_hidden_layers` is not a number of layers")
    return count


def listed_layers(name: str, values: Mapping[str, Any], layers: int) -> frozenset[int]:
    """The layers that a number of the model lists, `""` or no number for none; StepError if it is not the numbers of layers in
    ascending order, with commas between them."""
    text = values.get(name, "")
    ones = text.split(",") if isinstance(text, str) and text else []
    found = [int(one) for one in ones if one.isdecimal() and len(one) <= len(str(MAX_LAYERS))]
    if text != ",".join(map(str, found)) or found != sorted(set(found)) or (found and found[-1] >= layers):
        raise StepError(f'`{name}` is not text that lists some of {layers} layers, as "0,3"')
    return frozenset(found)


def _previous(kinds: Flags) -> Flags:
    return {f"{PREVIOUS}{kind}": value for kind, value in kinds.items()}
