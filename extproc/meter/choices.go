package meter

// maxChoices bounds the choices that are counted one by one; those beyond
// count as the last of them.
const maxChoices = 4096

// choiceCounts are the running totals of single choices: engines that count on
// each chunk count the chunk's own choice. The answer's output is their sum.
type choiceCounts struct {
	most  int         // choices that were asked for; 0 = not known
	first choiceCount // choice 0, nearly always the only one
	rest  []choiceCount
	sum   choiceCount
}

type choiceCount struct{ output, reasoning int64 }

// mostOfOne bounds the count of one choice, so that no sum overflows.
const mostOfOne = 1 << 50

// set takes a choice's total so far and returns the sums over all choices.
func (c *choiceCounts) set(index int, output, reasoning int64) (outputs, reasonings int64) {
	most := maxChoices
	if c.most > 0 {
		most = min(c.most, maxChoices)
	}
	index = min(max(index, 0), most-1)
	at := &c.first
	if index > 0 {
		if index > len(c.rest) {
			c.rest = append(c.rest, make([]choiceCount, index-len(c.rest))...)
		}
		at = &c.rest[index-1]
	}
	output = min(output, mostOfOne)
	now := choiceCount{output, min(reasoning, output)}
	c.sum.output += now.output - at.output
	c.sum.reasoning += now.reasoning - at.reasoning
	*at = now
	return c.sum.output, c.sum.reasoning
}

// reset forgets the totals: a count of the whole answer replaces them.
func (c *choiceCounts) reset() {
	clear(c.rest)
	c.first, c.sum = choiceCount{}, choiceCount{}
}
