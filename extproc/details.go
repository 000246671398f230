package extproc

// The attributes of an answer that tell Envoy's local replies from the
// model's answers.
const (
	attrDetails = "response.code_details"
	viaUpstream = "via_upstream"
)
