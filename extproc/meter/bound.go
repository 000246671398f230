package meter

import "math"

// absurd reports counts that the model cannot have made: a number that is no
// count, more input than its context holds, more output than it writes or,
// within its context, the caller allowed it to.
func (c *counts) absurd(o *Options) bool {
	if c.have&haveAbsurd != 0 {
		return true
	}
	answers := max(o.Choices, o.Prompts)
	in, out := times(o.ContextLimit, o.Prompts), times(o.OutputLimit, answers)
	if out > 0 {
		out = max(out, min(o.MaxOut, times(o.ContextLimit, answers)))
	}
	return in > 0 && c.input > in || out > 0 && c.output > out ||
		in > 0 && out > 0 && c.total > sum(in, out)
}

// times is a limit for so many, at least one, up to the largest value.
func times(limit, n int64) int64 {
	if n = max(n, 1); limit > math.MaxInt64/n {
		return math.MaxInt64
	}
	return limit * n
}
