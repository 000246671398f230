package lint

import (
	"regexp/syntax"
	"slices"
	"unicode"
)

// programSize is the number of instructions that RE2 makes of an expression,
// which Envoy compares with its limit. It follows RE2's compiler: Go's parser
// factors alternatives as RE2 does, a character becomes byte ranges, and the
// program is flattened into lists of alternatives. Envoy 1.36 to 1.38 reads
// expressions as UTF-8 (utf8), 1.39 and 1.40 as single bytes. An estimate:
// exact for the expressions of the tests, RE2 shares more of large Unicode
// classes. 0 where the expression is no good.
func programSize(expression string, utf8 bool) int {
	tree, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return 0
	}
	tree, start := trimAnchor(tree, syntax.OpBeginText)
	tree, _ = trimAnchor(tree, syntax.OpEndText)
	prog, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return 0
	}
	f := &flat{utf8: utf8, prog: prog, root: make([]bool, len(prog.Inst)), before: make([][]uint32, len(prog.Inst))}
	size := f.size()
	if !start {
		size += 2 // the loop that skips to a match, which Envoy does not use but counts
	}
	return 1 + size // and one that fails
}

// trimAnchor takes ^ off the front or $ off the end, as RE2 does.
func trimAnchor(t *syntax.Regexp, op syntax.Op) (*syntax.Regexp, bool) {
	end := func(n int) int {
		if op == syntax.OpBeginText {
			return 0
		}
		return n - 1
	}
	switch {
	case t.Op == op:
		return &syntax.Regexp{Op: syntax.OpEmptyMatch}, true
	case t.Op == syntax.OpConcat && len(t.Sub) > 0 && t.Sub[end(len(t.Sub))].Op == op:
		i := end(len(t.Sub))
		c := *t
		c.Sub = slices.Delete(slices.Clone(t.Sub), i, i+1)
		return &c, true
	}
	return t, false
}

// flat counts a program as RE2's Flatten does: each instruction that is jumped
// to heads a list of what it may choose from.
type flat struct {
	utf8   bool
	prog   *syntax.Prog
	root   []bool     // heads a list
	before [][]uint32 // alternatives that lead here
	extra  int        // instructions of the bytes behind the first of a character
}

func (f *flat) size() int {
	start := uint32(f.prog.Start) //nolint:gosec // an index
	f.root[start] = true
	seen := make([]bool, len(f.prog.Inst))
	f.mark(start, seen)
	for i := len(f.root) - 1; i >= 0; i-- {
		if f.root[i] {
			f.dominate(uint32(i)) //nolint:gosec // an index
		}
	}
	n := 0
	for i := range f.root {
		if f.root[i] {
			n += f.list(uint32(i)) //nolint:gosec // an index
		}
	}
	return n + f.extra
}

func branches(i *syntax.Inst) bool { return i.Op == syntax.InstAlt || i.Op == syntax.InstAltMatch }

// mark finds what heads a list: what a byte, a group or an assertion leads to.
func (f *flat) mark(id uint32, seen []bool) {
	stack := []uint32{id}
	for len(stack) > 0 {
		id, stack = stack[len(stack)-1], stack[:len(stack)-1]
		if seen[id] {
			continue
		}
		seen[id] = true
		in := &f.prog.Inst[id]
		switch {
		case branches(in):
			for _, out := range []uint32{in.Out, in.Arg} {
				f.before[out] = append(f.before[out], id)
				stack = append(stack, out)
			}
		case in.Op == syntax.InstNop:
			f.before[in.Out] = append(f.before[in.Out], id)
			stack = append(stack, in.Out)
		case in.Op == syntax.InstMatch || in.Op == syntax.InstFail:
		default:
			f.root[in.Out] = true
			stack = append(stack, in.Out)
		}
	}
}

// reach visits what a list holds, up to the heads of others.
func (f *flat) reach(root uint32, visit func(id uint32, head bool)) {
	seen := map[uint32]bool{}
	stack := []uint32{root}
	for len(stack) > 0 {
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if seen[id] {
			continue
		}
		seen[id] = true
		if id != root && f.root[id] {
			visit(id, true)
			continue
		}
		visit(id, false)
		if in := &f.prog.Inst[id]; branches(in) {
			stack = append(stack, in.Arg, in.Out)
		} else if in.Op == syntax.InstNop {
			stack = append(stack, in.Out)
		}
	}
}

// dominate makes a head of each instruction of a list that others lead to too.
func (f *flat) dominate(root uint32) {
	inside := map[uint32]bool{}
	f.reach(root, func(id uint32, _ bool) { inside[id] = true })
	for id := range inside {
		for _, from := range f.before[id] {
			if id != root && !inside[from] {
				f.root[id] = true
			}
		}
	}
}

func (f *flat) list(root uint32) (n int) {
	f.reach(root, func(id uint32, head bool) {
		in := &f.prog.Inst[id]
		switch {
		case head:
			n++ // a jump to another list
		case branches(in):
			if !f.utf8 && f.endless(id, in) {
				n++
			}
		case in.Op == syntax.InstNop:
		default:
			n += f.width(in)
		}
	})
	return n
}

// endless is whether an alternative takes any bytes to the end or matches:
// RE2 has an instruction of its own for that.
func (f *flat) endless(id uint32, in *syntax.Inst) bool {
	loop, end := &f.prog.Inst[in.Out], &f.prog.Inst[in.Arg]
	if end.Op != syntax.InstMatch {
		loop, end = end, loop
	}
	return end.Op == syntax.InstMatch && loop.Op == syntax.InstRuneAny && loop.Out == id
}

// width is how many entries of a list an instruction takes; the bytes after
// the first come extra.
func (f *flat) width(in *syntax.Inst) int {
	switch in.Op {
	case syntax.InstRuneAny:
		return f.ranges([]rune{0, unicode.MaxRune})
	case syntax.InstRuneAnyNotNL:
		return f.ranges([]rune{0, '\n' - 1, '\n' + 1, unicode.MaxRune})
	case syntax.InstRune, syntax.InstRune1:
		if len(in.Rune) == 1 {
			if in.Rune[0] >= 0x80 { // a character of several bytes, in both readings
				f.extra += len(string(in.Rune[0])) - 1
			}
			return 1
		}
		return f.ranges(in.Rune)
	}
	return 1
}

// ranges counts the byte ranges of a class of characters.
func (f *flat) ranges(class []rune) int {
	n := 0
	top := rune(0xFF)
	if f.utf8 {
		top = unicode.MaxRune
	}
	folds := foldsASCII(class)
	for i := 0; i+1 < len(class); i += 2 {
		lo, hi := class[i], min(class[i+1], top)
		if lo > hi || folds && lo >= 'A' && hi <= 'Z' {
			continue
		}
		if !f.utf8 || hi < 0x80 {
			n++
			continue
		}
		if lo < 0x80 {
			n++
			lo = 0x80
		}
		if lo == 0x80 && hi == unicode.MaxRune {
			n, f.extra = n+3, f.extra+3 // lead bytes of 2, 3 and 4, whose tails are shared
			continue
		}
		for _, end := range []rune{0x7FF, 0xFFFF, unicode.MaxRune} {
			if lo <= end && lo <= hi {
				n, f.extra = n+1, f.extra+len(string(min(end, hi)))-1
				lo = end + 1
			}
		}
	}
	return n
}

// foldsASCII is whether a class holds each letter in both cases, so that RE2
// writes it once.
func foldsASCII(class []rune) bool {
	has := func(r rune) bool {
		for i := 0; i+1 < len(class); i += 2 {
			if r >= class[i] && r <= class[i+1] {
				return true
			}
		}
		return false
	}
	for c := 'A'; c <= 'Z'; c++ {
		if has(c) != has(c|0x20) {
			return false
		}
	}
	return true
}
