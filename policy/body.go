package policy

// Body is what the JSON body of a request may ask for.
type Body struct {
	MaxChoices   int64        // answers to one prompt: n, best_of, beams and their other names; 128
	MaxPrompts   int64        // prompts or inputs of one request; 2048
	UnknownNames UnknownNames // in the body of a caller with parameter scopes
	Priority     BodyPriority // the caller's own "priority"
}

// UnknownNames says what becomes of a name that spells a scope's field in a
// way that no engine is known to read, or stands where none is known to look.
type UnknownNames uint8

// RefuseUnknown answers 403; AllowUnknown lets it pass unread.
const (
	RefuseUnknown UnknownNames = iota
	AllowUnknown
)

// BodyPriority says what becomes of a priority that the caller wrote into the
// body for the engine.
type BodyPriority uint8

// RemovePriority takes it out; KeepPriority lets it pass to pools that are not
// told one by weir.
const (
	RemovePriority BodyPriority = iota
	KeepPriority
)

// MostChoices bounds Body.MaxChoices.
const MostChoices = 1024

func defaultBody() Body { return Body{MaxChoices: 128, MaxPrompts: 2048} }

func bodyTable() codec[Body] {
	return object(
		key("maxChoices", func(b *Body) *int64 { return &b.MaxChoices }, whole[int64](1, MostChoices)),
		key("maxPrompts", func(b *Body) *int64 { return &b.MaxPrompts }, whole[int64](1, 100_000)),
		key("unknownNames", func(b *Body) *UnknownNames { return &b.UnknownNames },
			enum(choice[UnknownNames]{"refuse", RefuseUnknown}, choice[UnknownNames]{"allow", AllowUnknown})),
		key("priority", func(b *Body) *BodyPriority { return &b.Priority },
			enum(choice[BodyPriority]{"remove", RemovePriority}, choice[BodyPriority]{"keep", KeepPriority})),
	)
}
