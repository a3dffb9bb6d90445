"""What the module template needs around the kernels: what is declared to the runtime, and what callers see."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flashgen.analysis.facts import facts_of
from flashgen.codegen.declaration import Declaration, declaration, tuple_text
from flashgen.codegen.default_configs import default_text
from flashgen.codegen.docstrings import differentiable, quoted
from flashgen.codegen.naming import mangled, mangled_names
from flashgen.codegen.packed import with_packed_queries, with_packed_sequences
from flashgen.codegen.reference import Reference, reference_view
from flashgen.codegen.rendered_kernels import RenderedKernels
from flashgen.codegen.signature import Arguments, own_arguments
from flashgen.runtime.identity import Identity
from flashgen.runtime.registry import TUNED
from flashgen.spec.variant import Variant


@dataclass(frozen=True)
class ModuleView:
    """The holes of the module template.

    `kernels` has the views of all kernels. `own`, `varlen` and `paged` are the variant's own arguments of attention(),
    attention_varlen() and attention_paged(), `passed` what they pass on for them, each with a comma in front;
    `passed_without_dropout` where there is none, also of a variant with `dropout`. `defaults` are the texts of the
    functions that have the built-in configs of each family of kernels, `defaults_without_dropout` those of families
    that have others then.
    """

    title: str
    identity: Identity
    kernels: RenderedKernels
    defaults: dict[str, str]
    defaults_without_dropout: dict[str, str]
    declared: Declaration
    sink: bool
    counts_batch: bool
    own: Arguments
    varlen: Arguments
    paged: Arguments
    passed: str
    differentiable: str
    dropout: float | None
    passed_without_dropout: str
    takes_inputs: bool
    reference: Reference
    bottom_right: bool

    @property
    def scheduled(self) -> bool:
        """Whether attention() takes a plan."""
        return bool(self.kernels.views["forward"].scheduled)

    @property
    def plans_keys(self) -> bool:
        """Whether a plan has a part for the backward pass: which tiles of queries a tile of keys needs."""
        return self.scheduled and bool(self.kernels.views["backward_kv"].scheduled)


def module_view(variant: Variant, kernels: RenderedKernels, identity: Identity) -> ModuleView:
    """Lay the module out beside its rendered kernels.

    What callers see goes by the names of the spec, all else by those of generated code.
    """
    public, names = variant, mangled_names(variant)
    variant = mangled(variant)
    inputs, by_pair = kernels.views["backward_inputs"], kernels.views["backward_pairs"]
    declared = declaration(
        variant,
        {inside: name for name, inside in names.items()},
        inputs.learned if inputs else None,
        by_pair.owning if by_pair else None,
    )
    defaults, without_dropout = (
        {family: default_text(each, family) for family in TUNED} for each in (variant, replace(variant, dropout=None))
    )
    return ModuleView(
        title=quoted(variant.description),
        identity=identity,
        kernels=kernels,
        defaults=defaults,
        defaults_without_dropout={family: text for family, text in without_dropout.items() if text != defaults[family]},
        declared=declared,
        sink=variant.sink,
        counts_batch=facts_of(variant).counts_batch,
        own=own_arguments(public, names, "attention"),
        varlen=own_arguments(with_packed_sequences(public), names, "attention_varlen"),
        paged=own_arguments(with_packed_queries(public), names, "attention_paged"),
        passed=_passed(variant, "dropout_seed", "dropout_p"),
        passed_without_dropout=_passed(variant, "None", "0.0"),
        dropout=variant.dropout,
        differentiable=differentiable(public),
        takes_inputs=bool(variant.inputs),
        reference=reference_view(variant),
        bottom_right=variant.align == "bottom_right",
    )


def _passed(variant: Variant, seed: str, probability: str) -> str:
    """The variant's own arguments, the inputs in one tuple and the params in another, and last those of dropout."""
    kinds = {"inputs": [t.name for t in variant.inputs], "params": [p.name for p in variant.runtime_params]}
    if variant.dropout is not None:
        kinds = {"inputs": [*kinds["inputs"], seed], "params": [*kinds["params"], probability]}
    return "".join(f", {kind}={tuple_text(names)}" for kind, names in kinds.items() if names)
