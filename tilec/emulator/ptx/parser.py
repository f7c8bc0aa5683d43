"""PTX text -> `syntax.Module`.

Follows the grammar of the PTX ISA, sections 4 (Syntax), 5 (State Spaces, Types, and Variables) and 11 (Directives). Anything
unknown raises `UnsupportedPtx` with its line. Registers and labels of nested scopes `{ }` in a body get distinct names.
"""

from __future__ import annotations

import re
from typing import Final

from tilec.emulator.errors import UnsupportedPtx
from tilec.emulator.ptx.lexer import Token, number, pack
from tilec.emulator.ptx.operand_parser import OperandParser
from tilec.emulator.ptx.syntax import (
    Function,
    Immediate,
    Instruction,
    Module,
    Operand,
    Parameter,
    Register,
    Variable,
)

TYPE_BYTES: Final = {
    **{f"{kind}{bits}": bits // 8 for kind in "bus" for bits in (8, 16, 32, 64)},
    "f16": 2,
    "f16x2": 4,
    "bf16": 2,
    "bf16x2": 4,
    "f32": 4,
    "f64": 8,
    "b128": 16,
    "pred": 1,
}
SPACES: Final = ("reg", "shared", "global", "const", "local", "param")
LINKAGE: Final = ("extern", "visible", "weak", "common")
HINTS: Final = ("maxntid", "reqntid", "minnctapersm", "maxnreg", "maxnctapersm", "reqnctapercluster", "maxclusterrank")
FLAGS: Final = ("noreturn", "explicitcluster", "blocksareclusters")


def parse(text: str) -> Module:
    """Parses a module; UnsupportedPtx names the line of anything unknown or malformed."""
    return _Parser(text).module()


class _Parser(OperandParser):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.result = Module()
        self.function: Function | None = None
        self.location = (0, 0, 0)
        self.used_bytes = -1
        self.fresh = 0

    # --- module
    def module(self) -> Module:
        while self.here.kind != "end":
            word = self.take(kind="word")
            if word == ".version":
                major, _, minor = self.take(kind="number").partition(".")
                self.result.version = int(major), int(minor or 0)
            elif word == ".target":
                self.result.target = self.take(kind="word")
                while self.accept(","):
                    self.take(kind="word")
            elif word == ".address_size":
                if self.integer() != 64:
                    raise self.fail("only 64-bit addresses")
            elif word == ".file":
                self.file()
            elif word == ".section":
                self.skip_section()
            elif word == ".pragma":
                self.pragma()
            elif word == ".loc":
                self.loc()
            else:
                self.declaration(word)
        return self.result

    def file(self) -> None:
        index = self.integer()
        self.result.files[index] = self.take(kind="string")[1:-1]
        while self.accept(","):
            self.integer()

    def skip_section(self) -> None:
        self.take(kind="word")
        self.take("{")
        depth = 1
        while depth:
            depth += {"{": 1, "}": -1}.get(self.here.text, 0)
            if self.here.kind == "end":
                raise self.fail("section without an end")
            self.at += 1

    def pragma(self) -> None:
        texts = [self.take(kind="string")]
        while self.accept(","):
            texts.append(self.take(kind="string"))
        self.take(";")
        for text in texts:
            name, _, mask = text.strip('"').partition(" ")
            if name == "used_bytes_mask":
                self.used_bytes = int(mask, 0)

    def loc(self) -> None:
        line = self.here.line
        file = self.integer()
        row = self.integer()
        column = self.integer()
        while self.here.line == line and self.here.text in (",", "function_name", "inlined_at"):
            self.at += 1
            while self.here.line == line and (self.here.kind in ("number", "word") or self.here.text in (",", "+")):
                self.at += 1
        self.location = (file, row, column)

    def declaration(self, word: str) -> None:
        linkage = word[1:] in LINKAGE
        external = word == ".extern"
        if linkage:
            word = self.take(kind="word")
        if word in (".entry", ".func"):
            self.function_declaration(word == ".entry")
        elif word[1:] in ("shared", "global", "const"):
            variable = self.variable(word[1:], external)
            self.result.variables[variable.name] = variable
        else:
            self.at -= 1
            raise self.fail(f"unknown directive {word}")

    # --- variables
    def variable(self, space: str, external: bool = False) -> Variable:
        """After `.space`: `.align n .type name[dims] = init;`"""
        align = 0
        word = self.take(kind="word")
        if word == ".align":
            align = self.integer()
            word = self.take(kind="word")
        lanes = 1
        if word in (".v2", ".v4"):
            lanes = int(word[2:])
            word = self.take(kind="word")
        width = TYPE_BYTES.get(word[1:])
        if width is None:
            raise self.fail(f"unknown type {word}")
        name = self.take(kind="word")
        count, sized = 1, True
        while self.accept("["):
            if self.here.text == "]":
                sized = False
            else:
                count *= self.integer()
            self.take("]")
        initial = self.initialiser(word[1:], width * lanes, count) if self.accept("=") else None
        self.take(";")
        size = width * lanes * count if sized else len(initial or b"")
        return Variable(name, space, size, align or width * lanes, external and not sized, initial)

    def initialiser(self, type_name: str, width: int, count: int) -> bytes:
        values: list[Immediate] = []
        depth = 0
        while True:
            if self.accept("{"):
                depth += 1
            elif self.accept("}"):
                depth -= 1
            elif not self.accept(","):
                sign = -1 if self.accept("-") else 1
                item = number(self.take(kind="number"))
                values.append(Immediate(sign * item.value, item.is_float, item.bits, item.width) if sign < 0 else item)
            if depth == 0:
                break
        data = b"".join(pack(type_name, item, width) for item in values)
        return data.ljust(width * count, b"\0")

    # --- functions
    def function_declaration(self, is_entry: bool) -> None:
        line = self.here.line
        returns: list[Parameter] = []
        if not is_entry and self.here.text == "(":
            returns = self.parameters()
        function = Function(self.take(kind="word"), is_entry, line=line)
        if self.here.text == "(":
            function.parameters = self.parameters()
        while self.here.text not in ("{", ";"):
            word = self.take(kind="word")[1:]
            if word in HINTS:
                values = [self.integer()]
                while self.accept(","):
                    values.append(self.integer())
                function.directives[word] = tuple(values)
            elif word in FLAGS:
                function.directives[word] = ()
            elif word == "pragma":
                self.pragma()
            else:
                self.at -= 1
                raise self.fail(f"unknown directive .{word}")
        if self.accept(";"):
            return
        if not is_entry:
            raise UnsupportedPtx("device functions are not supported: every call must be inlined", line, function.name)
        del returns
        self.take("{")
        self.function, self.scopes, self.labels, self.location = function, [{}], [{}], (0, 0, 0)
        self.body(function)
        self.result.functions[function.name] = function

    def parameters(self) -> list[Parameter]:
        found: list[Parameter] = []
        self.take("(")
        offset = 0
        while not self.accept(")"):
            self.take(".param")
            align, width, type_name = 0, 0, ""
            while self.here.text.startswith("."):
                word = self.take(kind="word")
                if word == ".align":
                    align = self.integer()
                elif word == ".ptr":
                    if self.here.text in (".global", ".shared", ".const", ".local"):
                        self.take()
                    if self.accept(".align"):
                        self.integer()
                elif word[1:] in TYPE_BYTES:
                    width = TYPE_BYTES[word[1:]]
                    type_name = word[1:]
                else:
                    self.at -= 1
                    raise self.fail(f"unknown parameter attribute {word}")
            name = self.take(kind="word")
            size = width
            while self.accept("["):
                size *= self.integer()
                self.take("]")
            align = align or width
            offset = -(-offset // align) * align
            found.append(Parameter(name, type_name, size, align, offset))
            offset += size
            self.accept(",")
        return found

    # --- bodies
    def body(self, function: Function) -> None:
        self.collect_labels()
        depth = 1
        while depth:
            token = self.here
            if token.kind == "end":
                raise self.fail("function without an end")
            if self.accept("{"):
                depth += 1
                self.scopes.append({})
                self.labels.append({})
                self.collect_labels()
            elif self.accept("}"):
                depth -= 1
                self.scopes.pop()
                self.labels.pop()
            elif self.accept(";"):
                pass
            elif token.kind == "word" and self.tokens[self.at + 1].text == ":":
                self.at += 2
                self.label(function, token)
            elif token.text.startswith("."):
                self.at += 1
                self.directive(function, token.text)
            else:
                self.instruction(function)

    def collect_labels(self) -> None:
        """Collects the labels of the scope that begins here, for forward branches."""
        depth, at, scope = 0, self.at, self.labels[-1]
        while depth >= 0 and self.tokens[at].kind != "end":
            token = self.tokens[at]
            depth += {"{": 1, "}": -1}.get(token.text, 0)
            if depth == 0 and token.kind == "word" and self.tokens[at + 1].text == ":" and token.text[0] != ".":
                self.fresh += 1
                scope[token.text] = token.text if len(self.labels) == 1 else f"{token.text}#{self.fresh}"
            at += 1

    def label(self, function: Function, token: Token) -> None:
        name = self.labels[-1][token.text]
        if self.here.text == ".branchtargets":
            self.at += 1
            targets = [self.label_name(self.take(kind="word"))]
            while self.accept(","):
                targets.append(self.label_name(self.take(kind="word")))
            self.take(";")
            function.tables[name] = tuple(targets)
        else:
            function.labels[name] = len(function.instructions)

    def label_name(self, name: str) -> str:
        for scope in reversed(self.labels):
            if name in scope:
                return scope[name]
        raise self.fail(f"no label {name}")

    def directive(self, function: Function, word: str) -> None:
        if word == ".reg":
            self.registers(function)
        elif word == ".loc":
            self.loc()
        elif word == ".pragma":
            self.pragma()
        elif word in (".local", ".shared"):
            variable = self.variable(word[1:])
            function.variables[variable.name] = variable
        elif word == ".param":
            self.call_parameter(function)
        elif word == ".file":
            self.file()
        else:
            self.at -= 1
            raise self.fail(f"unknown directive {word}")

    def call_parameter(self, function: Function) -> None:
        """A parameter or result of a call: a variable of each thread, of which one serves all calls that give it this name (PTX
        ISA, "Parameter State Space", device function parameters)."""
        variable = self.variable("local")
        known = function.variables.get(variable.name)
        if known is None or known.size < variable.size:
            function.variables[variable.name] = variable

    def registers(self, function: Function) -> None:
        type_name = self.take(kind="word")[1:]
        if type_name not in TYPE_BYTES or type_name in ("b8", "u8", "s8", "f16x2", "bf16x2"):
            if type_name not in ("b8", "u8", "s8"):
                raise self.fail(f"unknown register type .{type_name}")
            type_name = type_name[0] + "16"
        while True:
            name = self.take(kind="word")
            if self.accept("<"):
                count = self.integer()
                self.take(">")
                names = [f"{name}{index}" for index in range(count)]
            else:
                names = [name]
            for name_of in names:
                register = Register(name_of, len(function.registers), type_name)
                function.registers.append(register)
                self.scopes[-1][name_of] = register
            if not self.accept(","):
                break
        self.take(";")

    def instruction(self, function: Function) -> None:
        first = self.here
        guard, negated = None, False
        if self.accept("@"):
            negated = self.accept("!")
            guard = self.find(self.take(kind="word"))
            if guard is None:
                raise self.fail("the guard is not a register")
        line = self.here.line
        opcode, *modifiers = re.split(r"\.", self.take(kind="word"))
        operands: list[Operand] = []
        while self.here.text != ";":
            operands.append(self.operand())
            if not self.accept(","):
                break
        end = self.here.start
        self.take(";")
        text = " ".join(self.text[first.start : end].split())
        function.instructions.append(
            Instruction(opcode, tuple(modifiers), tuple(operands), guard, negated, line, text, self.location, self.used_bytes)
        )
        self.used_bytes = -1
