"""CEL as the scheduler evaluates it on devices (resource.k8s.io/v1), for people and tests.

The engine is cel-expr-python (Google's cel-cpp), an extra. What Kubernetes adds to CEL is added here: the variable
``device``, quantities, semantic versions, the default domain, an empty map for an unknown domain. The rules that cost
users most are kept exactly: an unknown name is a run-time *error*, an error is no mismatch but fails the whole
allocation, and the result must be a bool.

Not here, so that an expression with them is refused when compiled: Kubernetes' url, ip, cidr, sets, regex and list
functions, and ``device`` as a value of its own (``dyn(device)``, ``[device]``, ``device == device``, bound by
``cel.bind``), since the engine has no variable above ``device.driver`` and its like. Not here either: the cost limit.
isInteger goes by value. ``cel.bind`` may bind ``device.attributes[domain]`` but not what is above it.

The engine tells overloads apart by shape only and takes no opaque Python values, so that a quantity or version is a
map of one entry, told apart in the functions. One difference comes of it: a version compared with text by ``==`` is
false here and an error in the scheduler.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any, NoReturn

from deviceclasses.quantity import parse_quantity
from deviceclasses.semver import Version, normalize_version, parse_version

try:
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings
except ImportError as error:
    raise ImportError("evaluate CEL: the extra is missing, install it with: pip install 'gpuclaim[cel]'") from error

MAX_EXPRESSION_BYTES = 10 * 1024
"""The API's limit for a selector."""

_QUANTITY = "@quantity"
_VERSION = "@version"
_MAX_INT = 2**63

_Wrapped = dict[str, str]


class CelError(ValueError):
    """An expression that can't be used, or that failed on a device."""


class CelCompileError(CelError):
    """The API server refuses this expression when it is written."""


class CelRuntimeError(CelError):
    """The expression failed on this device: the scheduler gives up on the pod instead of trying the next device."""


class Selector:
    """A compiled expression; made by ``compile_selector``."""

    def __init__(self, expression: str, program: Any) -> None:
        self.expression = expression
        self._program = program

    def matches(self, driver: str, device: Mapping[str, Any]) -> bool:
        """``device`` as in a ResourceSlice's spec.devices. Raises CelRuntimeError."""
        try:
            variables = _variables(driver, device)
        except ValueError as error:
            raise CelRuntimeError(f"evaluate CEL on device {device['name']}: {error}") from error
        result = self._program.eval(data=variables)
        if result.type().name() == "ERROR":
            _, _, text = str(result.value()).partition(": ")
            raise CelRuntimeError(f"evaluate CEL on device {device['name']}: {_plain(text)}")
        value = result.value()
        if not isinstance(value, bool):
            raise CelRuntimeError(f"evaluate CEL on device {device['name']}: result is {value!r}, not a bool")
        return value


@functools.lru_cache(maxsize=1024)
def compile_selector(expression: str) -> Selector:
    """Raises CelCompileError."""
    if len(expression.encode()) > MAX_EXPRESSION_BYTES:
        raise CelCompileError(f"compile CEL: the expression must not exceed {MAX_EXPRESSION_BYTES} bytes")
    try:
        program = _environment().compile(_as_the_engine_needs(expression))
    except RuntimeError as error:
        raise CelCompileError(f"compile CEL {expression!r}: {_first_problem(str(error))}") from error
    returned = program.return_type().name()
    if returned not in ("BOOL", "DYN"):
        raise CelCompileError(f"compile CEL {expression!r}: must evaluate to bool, not {returned.lower()}")
    return Selector(expression, program)


def _variables(driver: str, device: Mapping[str, Any]) -> dict[str, Any]:
    attributes: dict[str, dict[str, Any]] = {}
    for name, attribute in device.get("attributes", {}).items():
        domain, identifier = _qualify(name, driver)
        attributes.setdefault(domain, {})[identifier] = _attribute_value(name, attribute)
    capacity: dict[str, dict[str, _Wrapped]] = {}
    for name, entry in device.get("capacity", {}).items():
        domain, identifier = _qualify(name, driver)
        capacity.setdefault(domain, {})[identifier] = _wrap_quantity(parse_quantity(str(entry["value"])))
    return {
        "device.driver": driver,
        "device.allowMultipleAllocations": device.get("allowMultipleAllocations", False),
        "device.attributes": attributes,
        "device.capacity": capacity,
    }


def _qualify(name: str, driver: str) -> tuple[str, str]:
    domain, slash, identifier = name.partition("/")
    return (domain, identifier) if slash else (driver, name)


def _attribute_value(name: str, attribute: Mapping[str, Any]) -> Any:
    match attribute:
        case {"version": str(text)}:
            return _wrap_version(parse_version(text))
        case {"string": value} | {"int": value} | {"bool": value}:
            return value
        case _:
            raise CelRuntimeError(f"attribute {name}: unsupported attribute value")


def _as_the_engine_needs(expression: str) -> str:
    """Makes an unknown domain an empty map: ``device.attributes[d]`` becomes ``device.attributes[?d].orValue({})``, and
    with ``[?d]`` an optional of that. ``has(device.attributes)`` becomes what it always is, true: the engine takes the
    variable for the answer.
    """
    rewritten: list[str] = []
    closing: list[str] = []
    for token in _tokens(expression):
        if _DOMAIN_INDEX.fullmatch(token):
            optional = token.endswith("?")
            closing.append("].orValue({}))" if optional else "].orValue({})")
            rewritten.append(f"optional.of({token}" if optional else f"{token}?")
        elif _HAS_FIELD.fullmatch(token):
            rewritten.append("true")
        elif token in ("(", "{", "["):
            closing.append(_CLOSING[token])
            rewritten.append(token)
        elif token in (")", "}", "]") and closing:
            rewritten.append(closing.pop())
        else:
            rewritten.append(token)
    return "".join(rewritten)


_CLOSING = {"(": ")", "{": "}", "[": "]"}
_DOMAIN_INDEX = re.compile(r"\bdevice\s*\.\s*(?:attributes|capacity)\s*\[(?:\s*\?)?")
_HAS_FIELD = re.compile(
    r"\bhas\s*\(\s*device\s*\.\s*(?:driver|attributes|capacity|allowMultipleAllocations)\s*\)",
)
_TOKEN = re.compile(
    r"//[^\n]*"
    r"|[bB]?[rR](?:\"\"\".*?\"\"\"|'''.*?'''|\"[^\"\n]*\"|'[^'\n]*')"
    r"|[bB]?(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')"
    rf"|{_DOMAIN_INDEX.pattern}"
    rf"|{_HAS_FIELD.pattern}"
    r"|\w+|.",
    re.DOTALL,
)


def _tokens(expression: str) -> Iterator[str]:
    return (match.group() for match in _TOKEN.finditer(expression))


def _first_problem(text: str) -> str:
    """The engine's first complaint without its drawing of the (rewritten) expression."""
    _, _, rest = text.partition("ERROR: ")
    _, _, problem = (rest or text).splitlines()[0].partition(": ")
    return _plain(problem or text)


def _plain(text: str) -> str:
    key = re.fullmatch(r'Key not found in map : "(.*)"', text)
    if key:
        return f"no such key: {key[1]}"
    return text.replace("map(string, string)", "quantity or version").removesuffix(" (in container '')")


def _wrap_quantity(value: Fraction) -> _Wrapped:
    return {_QUANTITY: str(value)}


def _wrap_version(version: Version) -> _Wrapped:
    return {_VERSION: str(version)}


def _unwrap(value: Mapping[str, str]) -> Fraction | Version:
    match value:
        case {"@quantity": text}:
            return Fraction(text)
        case {"@version": text}:
            return parse_version(text)
        case _:
            raise CelRuntimeError("no such overload: neither a quantity nor a version")


def _quantity(value: Mapping[str, str]) -> Fraction:
    unwrapped = _unwrap(value)
    return unwrapped if isinstance(unwrapped, Fraction) else _no_overload()


def _version(value: Mapping[str, str]) -> Version:
    unwrapped = _unwrap(value)
    return unwrapped if isinstance(unwrapped, Version) else _no_overload()


def _no_overload() -> NoReturn:
    raise CelRuntimeError("no such overload: a quantity and a version don't go together")


def _compare(left: Mapping[str, str], right: Mapping[str, str]) -> int:
    match _unwrap(left), _unwrap(right):
        case (Fraction() as a, Fraction() as b):
            return (a > b) - (a < b)
        case (Version() as c, Version() as d):
            return (c > d) - (c < d)
        case _:
            _no_overload()


def _is_valid(parse: Callable[..., object], *given: object) -> bool:
    try:
        parse(*given)
    except ValueError:
        return False
    return True


def _as_integer(value: Mapping[str, str]) -> int:
    if not _is_integer(value):
        raise CelRuntimeError("cannot convert value to integer")
    return int(_quantity(value))


def _is_integer(value: Mapping[str, str]) -> bool:
    quantity = _quantity(value)
    return quantity.denominator == 1 and -_MAX_INT <= quantity < _MAX_INT


def _parse_version(text: str, normalize: bool = False) -> Version:
    return parse_version(normalize_version(text) if normalize else text)


def _functions() -> list[Any]:
    """The overloads of Kubernetes' quantity and semver libraries; the ids only have to be unique."""
    types, wrapped = cel.Type, _wrapped_type()

    def function(name: str, member: bool, returns: Any, call: Callable[..., Any], *signatures: list[Any]) -> Any:
        overloads = [
            cel.Overload(f"{name}_{len(signature)}_{index}", returns, signature, member, call)
            for index, signature in enumerate(signatures)
        ]
        return cel.FunctionDecl(name, overloads)

    text, two, flagged = [types.STRING], [wrapped, wrapped], [types.STRING, types.BOOL]
    return [
        function("quantity", False, wrapped, lambda value: _wrap_quantity(parse_quantity(value)), text),
        function("isQuantity", False, types.BOOL, lambda value: _is_valid(parse_quantity, value), text),
        function("semver", False, wrapped, lambda *given: _wrap_version(_parse_version(*given)), text, flagged),
        function("isSemver", False, types.BOOL, lambda *given: _is_valid(_parse_version, *given), text, flagged),
        function("compareTo", True, types.INT, _compare, two),
        function("isGreaterThan", True, types.BOOL, lambda left, right: _compare(left, right) > 0, two),
        function("isLessThan", True, types.BOOL, lambda left, right: _compare(left, right) < 0, two),
        function("asInteger", True, types.INT, _as_integer, [wrapped]),
        function("isInteger", True, types.BOOL, _is_integer, [wrapped]),
        function("asApproximateFloat", True, types.DOUBLE, lambda value: float(_quantity(value)), [wrapped]),
        function("major", True, types.INT, lambda value: _version(value).major, [wrapped]),
        function("minor", True, types.INT, lambda value: _version(value).minor, [wrapped]),
        function("patch", True, types.INT, lambda value: _version(value).patch, [wrapped]),
        function("add", True, wrapped, lambda left, right: _sum(left, right, 1), two, [wrapped, types.INT]),
        function("sub", True, wrapped, lambda left, right: _sum(left, right, -1), two, [wrapped, types.INT]),
        function("sign", False, types.INT, _sign, [wrapped]),
    ]


def _sum(left: Mapping[str, str], right: Mapping[str, str] | int, sign: int) -> _Wrapped:
    return _wrap_quantity(_quantity(left) + sign * (right if isinstance(right, int) else _quantity(right)))


def _sign(value: Mapping[str, str]) -> int:
    quantity = _quantity(value)
    return (quantity > 0) - (quantity < 0)


def _wrapped_type() -> Any:
    return cel.Type.Map(cel.Type.STRING, cel.Type.STRING)


@functools.cache
def _environment() -> Any:
    types = cel.Type
    return cel.NewEnv(
        variables={
            "device.driver": types.STRING,
            "device.allowMultipleAllocations": types.BOOL,
            "device.attributes": types.Map(types.STRING, types.Map(types.STRING, types.DYN)),
            "device.capacity": types.Map(types.STRING, types.Map(types.STRING, _wrapped_type())),
        },
        extensions=[ext_bindings.ExtBindings(), ext_optional.ExtOptional(), ext_strings.ExtStrings()],
        functions=_functions(),
    )
