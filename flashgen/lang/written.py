"""An expression as its author wrote it, from its syntax: names, numbers and operators, with params by their names.

Comments, line breaks and needless parentheses are gone, since nothing but nodes is read. `flashgen.lang.show` is the
same for the checked graph.
"""

from __future__ import annotations

from flashgen.lang.infix import Text, binary, call, conditional, number, prefix
from flashgen.lang.parse import BINDING
from flashgen.lang.syntax import Call, Chain, Conditional, Index, Literal, Name, Operation, Syntax, leftmost


def written(syntax: Syntax) -> str:
    """The text of the syntax, on one line; parsing it again gives the same syntax."""
    return str(_text(syntax))


def _text(syntax: Syntax) -> Text:
    first, operations = leftmost(syntax)
    text = _operand(first)
    for operation in operations:
        text = binary(operation.symbol, text, _text(operation.operands[1]))
    return text


def _operand(syntax: Syntax) -> Text:
    """The text of what is no binary operation."""
    match syntax:
        case Literal(value=value):
            return number(value)
        case Name(id=name):
            return Text(name)
        case Operation(symbol=symbol, operands=(operand,)):
            return prefix(symbol, _text(operand))
        case Chain(symbols=symbols, operands=operands):
            first, *others = (_text(operand).within(BINDING["<"] + 1) for operand in operands)
            links = (f" {symbol} {other}" for symbol, other in zip(symbols, others, strict=True))
            return Text("".join([first, *links]), BINDING["<"])
        case Conditional(test=test, then=then, otherwise=otherwise):
            return conditional(_text(test), _text(then), _text(otherwise))
        case Call(function=function, arguments=arguments):
            return call(function, *map(_text, arguments))
        case Index(input=tensor, indices=indices):
            return Text(f"{tensor}[{', '.join(str(_text(index)) for index in indices)}]")
    raise AssertionError(f"the parser has no {type(syntax).__name__}")
