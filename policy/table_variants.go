package policy

import (
	"strings"
	"time"
)

func nonStreamingTable() codec[NonStreaming] {
	return object(
		key("variant", func(n *NonStreaming) *Variant { return &n.Variant }, variant()),
		key("maxWait", func(n *NonStreaming) *time.Duration { return &n.MaxWait }, duration(0, 10*time.Minute, true)),
	)
}

func variantsTable() codec[Variants] {
	return object(append(variantsFields(),
		key("flip", func(v *Variants) *time.Duration { return &v.Flip }, duration(100*time.Millisecond, time.Hour, true)),
		key("sessionFor", func(v *Variants) *time.Duration { return &v.SessionFor }, duration(time.Second, 24*time.Hour, false)),
	)...)
}

// profileVariantsTable has what is judged for each request; how long choices
// and sessions are kept belongs to the memory that all profiles share.
func profileVariantsTable() codec[Variants] { return object(variantsFields()...) }

func variantsFields() []field[Variants] {
	session := checked(text(0, 128), `a header name, not one of weir's or Envoy's own; "" = none`, func(s string) string {
		if s == "" {
			return ""
		}
		return headerRule(s)
	})
	notice := matching(checked(text(0, 256), `at most 256 of printable ASCII; "" = none`, func(s string) string {
		if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) || strings.TrimSpace(s) != s {
			return "must be printable ASCII without spaces at its ends: it is sent as a header"
		}
		return ""
	}), `^([!-~]([ -~]*[!-~])?)?$`)
	return []field[Variants]{
		key("choose", func(v *Variants) *bool { return &v.ByCost }, enum(choice[bool]{"class", false}, choice[bool]{"cost", true})),
		key("sessionHeader", func(v *Variants) *string { return &v.Session }, session),
		key("notice", func(v *Variants) *string { return &v.Notice }, notice),
	}
}
