"""The rules by which random mods are written."""

from __future__ import annotations

# Each {symbol} of a rule is drawn anew. `exact` is a tensor of floats without rounding, `float` one of any floats;
# `number` is an integer or a float of Python, `count` an integer of Python above 0.
RULES = {
    "bool": [
        "({int} {compare} {int})", "({int} {compare} {number})", "({number} {compare} {int})",
        "({exact} {compare} {exact})", "({exact} {compare} {int})", "({exact} {compare} {number})",
        "({bool} {bits} {bool})", "({bool} {bits} {bool})", "(~{bool})", "{bool}.logical_not()",
        "torch.logical_{bitword}({int}, {bool})", "torch.logical_{bitword}({bool}, {bool})",
        "torch.bitwise_{bitword}({bool}, {bool})", "torch.{cmpword}({int}, {exact})", "{int}.{cmpword}({number})",
        "{int}.bool()", "{int}.to(torch.bool)", "{exact}.bool()", "torch.where({bool}, {bool}, {bool})",
        "({bool} + {bool})", "({bool} * {bool})", "({bool} == {bool})", "({bool} != {bool})", "({bool} > {bool})",
        "torch.maximum({bool}, {bool})", "torch.minimum({bool}, {bool})", "({bool} & {pybool})",
        "({pybool} | {bool})", "torch.ones_like({int}, dtype=torch.bool)", "(({int} & {count}) != 0)", "{row}.any()",
        "({row} == {int}).any()", "torch.all({row} {compare} {number})", "{bool}.clone()", "torch.zeros_like({bool})",
        "torch.isinf({exact})", "torch.isnan({exact})", "({exact} == {exact}.floor())",
        "{int}.eq({int}).logical_or({bool})", "torch.full_like({bool}, {pybool})",
    ],
    "int": [
        "({int} {sum} {int})", "({int} {sum} {whole})", "({whole} {sum} {int})", "({int} {sum} {bool})",
        "({int} * {factor})", "({factor} * {int})", "({int} * {bool})", "(-{int})", "{int}.neg()", "(~{int})",
        "({int} // {divisor})", "({int} % {divisor})", "({whole} // ({int}.abs() + 1))",
        "({int} % ({int}.abs() + 1))", "torch.div({int}, {divisor}, rounding_mode='{rounding}')",
        "torch.fmod({int}, {divisor})", "torch.remainder({int}, {divisor})", "torch.floor_divide({int}, {divisor})",
        "(({int} % 5) ** {power})", "({int} {bits} {int})", "({int} {bits} {count})", "(({int} & 7) << {power})",
        "({int} >> {power})", "({int} >> ({int} & 3))", "(1 << ({int} & 3))", "({int} {bits} {bool})",
        "(2 ** ({int} & 3))", "torch.{extreme}({int}, {int})", "{int}.clamp({low}, {high})",
        "torch.clamp({int}, min={low})", "{int}.clamp(max={high})", "{int}.clamp_min({low})", "{int}.abs()",
        "abs({int})", "torch.sign({int})", "torch.where({bool}, {int}, {int})", "torch.where({bool}, {int}, {whole})",
        "{int}.masked_fill({bool}, {whole})", "{bool}.int()", "{bool}.long()", "{bool}.to(torch.int8)",
        "{int}.to({inttype})", "{int}.long()", "{int}.int()", "{exact}.int()", "{exact}.long()",
        "{exact}.floor().to(torch.int32)", "{int}.type_as({int})", "{int}.square()", "({bool} + {whole})",
        "({bool} * {factor})", "{row}.sum()", "({row} * {row}).sum()", "{row}[{place}]",
        "({row} {compare} {number}).sum()", "({row} == {int}).sum()", "torch.full_like({int}, {whole})",
        "torch.tensor({whole})", "torch.tensor({whole}, dtype={inttype})", "torch.zeros_like({int})", "({int} ^ -1)",
        "torch.ones_like({int}, dtype={inttype})", "{int}.add({int}, alpha={factor})", "{int}.sub({int})",
        "torch.rsub({int}, {int})", "{int}.mul({factor})", "torch.bitwise_{bitword}({int}, {int})",
        "torch.bitwise_not({int})", "torch.clamp({int}, {int}, {int})", "({int}).floor()", "torch.trunc({int})",
        "{int}.ceil()", "{int}.clone()", "torch.square({int})",
    ],
    "exact": [
        "({exact} {sum} {exact})", "({exact} {sum} {number})", "({number} {sum} {exact})", "({exact} {sum} {int})",
        "({exact} {sum} {bool})", "({exact} * {half})", "({half} * {int})", "({int} / {two})", "({exact} / {two})",
        "({exact} // {two})", "({exact} % {half})", "({exact} // {half})", "(-{exact})", "{exact}.abs()",
        "torch.{extreme}({exact}, {exact})", "torch.{extreme}({exact}, {int})", "{exact}.clamp({low}, {high})",
        "{int}.clamp({half}, 4.5)", "{exact}.floor()", "torch.ceil({exact})", "torch.trunc({exact})",
        "{exact}.sign()", "torch.where({bool}, {exact}, {exact})", "torch.where({bool}, {exact}, {number})",
        "{exact}.relu()", "torch.where({bool}, {int}, {exact})", "{int}.float()", "{int}.double()", "{bool}.float()",
        "{int}.to({exact}.dtype)", "{exact}.to(torch.float32)", "{int}.type_as({exact})",
        "torch.fmod({exact}, {two})", "({bool} * {half})", "torch.tensor({quarter})",
        "torch.full_like({exact}, {whole})", "torch.div({exact}, {two}, rounding_mode='{rounding}')", "{frow}.sum()",
        "({frow} * {row}).sum()", "{frow}[{place}]", "({int} / {two} + {quarter})",
        "torch.nn.functional.relu({exact})", "{exact}.masked_fill({bool}, {number})", "torch.square({int} * 0.5)",
        "torch.frac({exact})", "torch.heaviside({exact}, {exact})", "torch.lerp({exact}, {exact}, 0.5)",
        "torch.nan_to_num({exact})", "torch.nn.functional.hardtanh({exact})",
        "torch.nn.functional.leaky_relu({exact}, 0.25)", "torch.addcmul({exact}, {exact}, {exact}, value=0.5)",
        "{frow}.mean() * {frow}.shape[0]", "torch.sort({frows})[0][{place}]", "({frows}).flip(0)[{place}]",
        "torch.cumsum({frows}, 0)[{place}]", "({frow} - {frow}).amax()",
        "{frow}.min()",
    ],
    "float": [
        "({float} {sum} {float})", "({float} {sum} {number})", "({number} {sum} {float})", "({float} {sum} {int})",
        "({float} * {quarter})", "({float} * {tame})", "({float} / ({tame}.abs() + 1))", "(1 / ({int}.abs() + 1))",
        "({float} {sum} {bool})", "(-{float})", "{float}.abs()", "torch.where({bool}, {float}, {float})",
        "torch.where({bool}, {float}, {number})", "{tame}.exp()", "torch.exp2({tame})", "torch.log({positive})",
        "{positive}.log2()", "{positive}.sqrt()", "{positive}.rsqrt()", "torch.tanh({tame})", "{tame}.sigmoid()",
        "torch.sin({tame})", "{tame}.cos()", "torch.erf({tame})", "torch.nn.functional.gelu({tame})",
        "torch.nn.functional.silu({tame})", "torch.nn.functional.softplus({tame})",
        "torch.nn.functional.logsigmoid({tame})", "torch.log1p({positive})", "torch.expm1({tame})",
        "{positive}.reciprocal()", "({tame} ** 2)", "({tame} ** {power})", "({positive} ** 0.5)",
        "({positive} ** {tame})", "(2.0 ** {tame})", "torch.pow({positive}, {quarter})",
        "torch.maximum({float}, {exact})", "{float}.clamp(min={low})", "{float}.clamp({low}, {high})", "{exact}",
        "{exact}", "(20.0 * torch.tanh({float} / 20.0))", "{float}.masked_fill({bool}, {quarter})",
        "({frow} * {float}).sum()", "torch.nn.functional.elu({tame})", "torch.log10({positive})",
        "torch.nn.functional.mish({tame})", "{float}.double().float()",
        "torch.nn.functional.gelu({tame}, approximate='tanh')", "torch.tan({tame} * 0.5)",
        "torch.addcdiv({float}, {tame}, {positive})", "torch.nn.functional.hardswish({tame})", "torch.sinc({tame})",
        "torch.nn.functional.softsign({tame})", "torch.softmax({frows}, 0)[{place}]",
    ],
    "tame": [
        "torch.tanh({float})", "{exact}.clamp(-2, 2)", "({int} % 5 * 0.25)", "torch.sin({int})",
        "{float}.clamp(-2, 2)",
    ],
    "positive": [
        "({tame}.abs() + 0.5)", "({int}.abs() + 1)", "torch.exp({tame})", "({int} % 7 + 0.25)",
    ],
}  # fmt: skip
# Where an expression may not be deeper.
LEAVES = {
    "bool": ["({position} {compare} {position})", "{table_bool}", "({position} {compare} {whole})", "{scalar_bool}"],
    "int": ["{position}", "{position}", "{table_int}", "{table_int}", "{scalar_int}"],
    "exact": ["{table_float}", "{table_float}", "({position} * 0.5)", "{scalar_float}", "{learned}"],
    "float": ["{score}", "{score}", "{table_float}", "{learned}"],
    "tame": ["{exact}.clamp(-2, 2)", "({position} * 0.125)"],
    "positive": ["({position} + 1)", "({table_float}.abs() + 0.5)"],
}
WORDS = {
    "compare": ["<", "<=", ">", ">=", "==", "!="], "cmpword": ["eq", "ne", "lt", "le", "gt", "ge"], "sum": ["+", "-"],
    "bits": ["&", "|", "^"], "bitword": ["and", "or", "xor"], "rounding": ["floor", "trunc"],
    "extreme": ["minimum", "maximum"], "power": ["0", "1", "2", "3"], "half": ["0.5", "-0.5", "1.5", "2"],
    "two": ["2", "4", "-2", "0.5"], "quarter": ["0.25", "-1.75", "3.0", "0.0", "1.5"], "low": ["-3", "-1", "0"],
    "high": ["2", "5"], "position": ["b", "h", "q", "k", "q", "k"], "place": ["0", "1", "-1", "{int}.long() % 3", "h"],
    "inttype": ["torch.uint8", "torch.int8", "torch.int16", "torch.int32", "torch.int64"],
    "number": ["{whole}", "{quarter}", "{own_float}"], "whole": ["0", "1", "-2", "5", "{own_int}", "{own_int}"],
    "factor": ["2", "3", "-1", "-2", "{own_int}"], "count": ["1", "3", "6", "{own_count}"],
    "divisor": ["2", "3", "-3", "7", "{own_count}"], "pybool": ["True", "False", "{own_bool}"],
}  # fmt: skip
# Numbers of Python that a mod captures.
OWN = {
    "own_int": ["-7", "-2", "0", "1", "3", "12"], "own_count": ["1", "2", "3", "5"], "own_bool": ["True", "False"],
    "own_float": ["0.25", "-1.5", "2.0", "0.0"],
}  # fmt: skip
MINUS = ["-math.inf", 'float("-inf")', "-torch.inf", "-1e9", "torch.finfo(torch.float32).min"]
SCORES = [
    "{float}", "score + {float}", "score + {exact}", "score * ({tame}) + {float}",
    "torch.where({bool}, score, {minus}) + {float}", "torch.where({bool}, {float}, {minus})",
    "{float} + torch.where({bool}, 0, {minus})", "score.masked_fill({bool}, {minus}) + {float}",
]  # fmt: skip
MASKS = ["{bool}", "{bool}", "{bool} & (q >= k)", "{bool} | (q >= k)", "{int}"]
