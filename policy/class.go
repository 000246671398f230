package policy

// Class is the importance of a request (P1). Lower is more important.
type Class uint8

// The three classes. The zero value is the most important one: never rely on
// it as a default, an identity without a class is Standard.
const (
	Critical Class = iota
	Standard
	Batch
	NumClasses = 3
)

// String is the name used in YAML, metrics and headers.
func (c Class) String() string {
	switch c {
	case Critical:
		return "critical"
	case Standard:
		return "standard"
	case Batch:
		return "batch"
	}
	return "unknown"
}

// ParseClass reads a class by name or number ("standard", "1").
func ParseClass(s string) (Class, bool) {
	switch s {
	case "critical", "0":
		return Critical, true
	case "standard", "1":
		return Standard, true
	case "batch", "2":
		return Batch, true
	}
	return 0, false
}

// Lower returns the less important of two classes.
func (c Class) Lower(d Class) Class { return max(c, d) }

// Colour is apart from class: Red is a strict lane before all weights, Green
// may be ended at any time. The zero value is none.
type Colour uint8

// The colours.
const (
	NoColour Colour = iota
	Red
	Yellow
	Green
)

// String is the name used in YAML, metrics and headers; "" for none.
func (c Colour) String() string {
	switch c {
	case Red:
		return "red"
	case Yellow:
		return "yellow"
	case Green:
		return "green"
	}
	return ""
}

// Lower returns the colour that claims less: red goes before all, no colour
// claims nothing, yellow may be degraded, green may be ended.
func (c Colour) Lower(d Colour) Colour {
	if d.rank() < c.rank() {
		return d
	}
	return c
}

func (c Colour) rank() int {
	switch c {
	case Red:
		return 3
	case Yellow:
		return 1
	case Green:
		return 0
	}
	return 2
}

// ParseColour reads a colour by name; "" is none.
func ParseColour(s string) (Colour, bool) {
	switch s {
	case "":
		return NoColour, true
	case "red":
		return Red, true
	case "yellow":
		return Yellow, true
	case "green":
		return Green, true
	}
	return 0, false
}

// Rank orders precisions: higher is more precise, 0 is unknown.
func (v Variant) Rank() int {
	switch v {
	case FP16:
		return 3
	case FP16Dyn:
		return 2
	case INT8:
		return 1
	}
	return 0
}
