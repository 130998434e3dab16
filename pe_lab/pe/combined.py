"""Several encodings in one model, everywhere or on some layers only."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Self

from torch import Tensor, nn

from pe_lab.core.validation import as_yaml, instantiate
from pe_lab.pe.base import AttentionInputs, Dims, PositionalEncoding


class Combined(PositionalEncoding):
    """Several encodings at once, each on all layers or on those it names.

        x      = part_2.embed(part_1.embed(x))       in the order of the list; block_input alike
        q, k   = the one part that rotates
        logits = content + (term of each part) + (bias of each part)
        out    = weights @ v + (values of each part)

    ``parts`` lists them, by the name of their yaml or as a mapping with keys changed: ``[cope, {pe:
    rope, layers: [0, 2], base: 500}]``. ``layers`` counts from 0; without it a part acts in every
    layer. A part counts only the layers it acts in: the last of them is its last.

    - A part's term of the logits is computed from q and k before any rotation, by itself: CoPE's
      gates see neither another part's term nor the rotation.
    - In a layer at most one part rotates or scales q and k, one replaces softmax and one replaces
      the content term (DeBERTa, PaTH, DAPE, Wall, ReRoPE and its kin). Where one replaces it, no
      other rotates.
    - One part in all carries something from layer to layer.
    - The narrowest window holds for the whole layer.

    A part that only acts at the input takes no ``layers``, and ``none`` is no part. A combination
    reaches as far as its shortest part, and shares among layers what each part shares. Absolute
    where a part is; causal as its parts.

    Source: Golovneva 2024 (2405.18719) adds CoPE to relative and rotary encodings. Learned
    positions with a T5 bias are those of TUPE-R (Ke 2021, 2006.15595) without untying.
    """

    def __init__(self, dims: Dims, parts: list[dict[str, Any]]) -> None:
        super().__init__()
        if not parts:
            raise ValueError("parts=[] combines nothing: list encodings, parts=[cope,rope]")
        self.parts: Any = nn.ModuleDict()
        self.names, carrying = {}, []
        for n, section in enumerate(parts):
            part, acts = build_part(section, n, dims)
            self.names[str(n)] = name = str(section.get("pe", section["_target_"]))
            if acts:
                self.parts[str(n)] = part
            if part.carries:
                carrying.append(name)
        self._refuse_clashes(carrying, dims.layer)
        active = self.active_parts()
        self.max_len = smallest(part.max_len for part in active)
        self.window = smallest(part.window for part in active)
        self.shift_invariant = all(part.shift_invariant for part in active)
        self.at_test_time = any(part.at_test_time for part in active)
        self.whole_sequence = any(part.whole_sequence for part in active)
        reading = [part for part in active if part.reads_positions is not None]
        kinds = {part.reads_positions for part in reading}
        self.reads_positions = kinds.pop() if len(kinds) == 1 else int if kinds else None
        axes = {part.axes for part in reading}
        self.axes = axes.pop() if len(axes) == 1 else 1

    def null_values(self) -> dict[str, Any]:
        return {
            f"parts.{number}.{key}": value
            for number, part in self.parts.items()
            for key, value in part.null_values().items()
        }

    def active_parts(self, hook: str | None = None) -> list[PositionalEncoding]:
        """The parts that act in this layer, or at one hook of it, in order."""
        return [part for part in self.parts.values() if hook is None or hook in part.hooks()]

    def named_parts(self) -> list[tuple[str, PositionalEncoding]]:
        """The name and the encoding of each part that acts in this layer."""
        return list(zip(map(self.names.__getitem__, self.parts), self.active_parts(), strict=True))

    @property
    def rotates_by_position(self) -> bool:
        return all(part.rotates_by_position for part in self.active_parts("rotate"))

    @property
    def bias_by_distance(self) -> bool:
        return all(part.bias_by_distance for part in self.active_parts("bias"))

    @property
    def replaces_content(self) -> bool:
        return any(part.replaces_content for part in self.active_parts("logits"))

    def attention_parts(self) -> list[PositionalEncoding]:
        """The parts that act in this layer's attention."""
        return [part for part in self.active_parts() if part.hooks() - {"embed", "block_input"}]

    def _refuse_clashes(self, carrying: list[str], layer: int) -> None:
        """ValueError where two parts do the same, so that one of them would be lost."""

        def names_of(act: Callable[[PositionalEncoding], bool]) -> list[str]:
            return [name for name, part in self.named_parts() if act(part)]

        acts = {
            "carry something from layer to layer": carrying,
            "replace softmax": names_of(lambda part: "normalize" in part.hooks()),
            "rotate q and k or replace the content term": names_of(
                lambda part: "rotate" in part.hooks() or part.replaces_content
            ),
        }
        for act, names in acts.items():
            if len(names) > 1:
                raise ValueError(
                    f"parts {names[0]} and {names[1]} clash in layer {layer}: both {act}; give "
                    "them different layers, or leave one out"
                )

    def share(self, lower: Self) -> None:
        for n in self.parts.keys() & lower.parts.keys():
            if self.parts[n].share_layers:
                self.parts[n] = lower.parts[n]
            else:
                self.parts[n].share(lower.parts[n])

    def hooks(self) -> frozenset[str]:
        return frozenset(hook for part in self.active_parts() for hook in part.hooks())

    def embed(self, x_BSE: Tensor, tokens_BS: Tensor, pos_BS: Tensor) -> Tensor:
        for part in self.active_parts("embed"):
            x_BSE = part.embed(x_BSE, tokens_BS, pos_BS)
        return x_BSE

    def block_input(self, x_BTE: Tensor, pos_q_BT: Tensor) -> Tensor:
        for part in self.active_parts("block_input"):
            x_BTE = part.block_input(x_BTE, pos_q_BT)
        return x_BTE

    def rotate(
        self, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> tuple[Tensor, Tensor]:
        for part in self.active_parts("rotate"):
            q_BHTD, k_BHSD = part.rotate(q_BHTD, k_BHSD, inputs)
        return q_BHTD, k_BHSD

    def bias(self, pos_q_BT: Tensor, pos_k_BS: Tensor) -> Tensor | None:
        return sum_present(part.bias(pos_q_BT, pos_k_BS) for part in self.active_parts("bias"))

    def logits(
        self, content_BHTS: Tensor, q_BHTD: Tensor, k_BHSD: Tensor, inputs: AttentionInputs
    ) -> Tensor:
        changing, rotating = self.active_parts("logits"), self.active_parts("rotate")
        total_BHTS = content_BHTS
        for part in changing:
            # A part that rotates q and k itself, or replaces the content, takes them as they are.
            if part.replaces_content or part in rotating:
                total_BHTS = part.logits(content_BHTS, q_BHTD, k_BHSD, inputs)
        rest = [p for p in changing if not p.replaces_content and p not in rotating]
        plain_BHTS = content_BHTS
        if rest and rotating:
            q_BHTD, k_BHSD = inputs.q_BHTD, inputs.k_BHSD
            plain_BHTS = (q_BHTD * q_BHTD.shape[-1] ** -0.5) @ k_BHSD.transpose(-1, -2)
        for part in rest:
            changed_BHTS = part.logits(plain_BHTS, q_BHTD, k_BHSD, inputs)
            first = total_BHTS is plain_BHTS
            total_BHTS = changed_BHTS if first else total_BHTS + (changed_BHTS - plain_BHTS)
        return total_BHTS

    def normalize(self, logits_BHTS: Tensor, mask_TS: Tensor) -> Tensor | None:
        for part in self.active_parts("normalize"):
            return part.normalize(logits_BHTS, mask_TS)
        return None

    def values(self, weights_BHTS: Tensor, inputs: AttentionInputs) -> Tensor | None:
        return sum_present(
            part.values(weights_BHTS, inputs) for part in self.active_parts("values")
        )

    def layer_state(self, weights_BHTS: Tensor, inputs: AttentionInputs) -> Any:
        for part in self.active_parts("layer_state"):
            return part.layer_state(weights_BHTS, inputs)
        return inputs.carried

    def update_state(self, carried: Any, x_BTE: Tensor) -> Any:
        for part in self.active_parts("update_state"):
            carried = part.update_state(carried, x_BTE)
        return carried


def smallest(limits: Iterable[int | None]) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def sum_present(terms: Iterable[Tensor | None]) -> Tensor | None:
    present = [term for term in terms if term is not None]
    return sum(present[1:], present[0]) if present else None


def build_part(listed: dict[str, Any], n: int, dims: Dims) -> tuple[PositionalEncoding, bool]:
    """Builds part n. Returns it, and whether it acts in this layer."""
    key, name = f"parts.{n}", listed.get("pe", listed["_target_"])
    layers = check_layers(listed.get("layers"), key, dims)
    here = layers.index(dims.layer) if dims.layer in layers else 0
    section = {k: v for k, v in listed.items() if k not in ("pe", "layers")}
    # What counts layers (CoPE's every, TAPE's last one) counts those that the part acts in.
    part_dims = replace(dims, layer=here, n_layers=len(layers))
    part: PositionalEncoding = instantiate(section, f"pe.{key}", PositionalEncoding, part_dims)
    if isinstance(part, Combined):
        raise ValueError(f"{key} is combined itself: list its parts here instead")
    if not (part.hooks() | part.unused):
        raise ValueError(f"{key}={name} does nothing: leave it out, or give the others layers")
    at_input = "embed" in part.hooks()
    if at_input and listed.get("layers") is not None and (part.hooks() == {"embed"} or layers[0]):
        raise ValueError(
            f"{key}.layers={as_yaml(listed['layers'])} has no effect on {name} at the input, where "
            "it acts once: leave layers out"
        )
    # The input is there once; a part that acts there and nowhere else belongs to layer 0.
    idle = not part.hooks() or (dims.layer > 0 and part.hooks() == {"embed"})
    return part, not idle and dims.layer in layers


def check_layers(layers: Any, key: str, dims: Dims) -> list[int]:
    if layers is None:
        return list(range(dims.n_layers))
    good = isinstance(layers, list) and layers and all(type(layer) is int for layer in layers)
    if not good or len({*layers}) < len(layers) or {*layers} - {*range(dims.n_layers)}:
        raise ValueError(
            f"{key}.layers={as_yaml(layers)} is not allowed: list layers from 0 to "
            f"{dims.n_layers - 1} (n_layers={dims.n_layers} in all), each once, layers: [0]"
        )
    return sorted(layers)
