package body

import (
	"fmt"
	"strings"
)

// CheckHeaders judges whether a request's body can be read as JSON at all.
// Content types other than JSON (application/json, any +json) in UTF-8 and
// every content coding but identity are refused with 415: a body that is not
// read cannot be judged, and unpacking requests would let a small one stand
// for a huge one. A missing content type is accepted, and so is what curl -d
// sends where nobody says a type (application/x-www-form-urlencoded): the body
// then speaks for itself.
func CheckHeaders(contentType, contentEncoding string) *Error {
	for coding := range strings.SplitSeq(contentEncoding, ",") {
		if c := strings.TrimSpace(coding); c != "" && !strings.EqualFold(c, "identity") {
			return &Error{415, CodeEncoding, "", fmt.Sprintf(
				"content-encoding %s is not accepted for requests; send the body uncompressed", show(c))}
		}
	}
	if contentType == "" {
		return nil
	}
	media, params, _ := strings.Cut(contentType, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	if media != "application/json" && media != curlType && !isJSONSuffix(media) {
		return &Error{415, CodeMediaType, "", fmt.Sprintf(
			"content-type %s is not accepted; send application/json", show(media))}
	}
	for p := range strings.SplitSeq(params, ";") {
		k, v, _ := strings.Cut(strings.TrimSpace(p), "=")
		if v = strings.Trim(strings.TrimSpace(v), `"`); strings.EqualFold(strings.TrimSpace(k), "charset") &&
			!strings.EqualFold(v, "utf-8") && !strings.EqualFold(v, "utf8") && !strings.EqualFold(v, "us-ascii") {
			return &Error{415, CodeMediaType, "", fmt.Sprintf(
				"charset %s is not accepted; JSON is sent in UTF-8", show(v))}
		}
	}
	return nil
}

// curlType is what curl -d says of any body.
const curlType = "application/x-www-form-urlencoded"

// SaysForm reports a content type that was not chosen: a JSON body goes on as
// what it is, since engines refuse it otherwise.
func SaysForm(contentType string) bool {
	media, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimSpace(media), curlType)
}

func isJSONSuffix(media string) bool {
	kind, sub, ok := strings.Cut(media, "/")
	return ok && kind == "application" && len(sub) > len("+json") &&
		strings.HasSuffix(sub, "+json") && !strings.ContainsAny(sub, ", \t")
}

func show(s string) string { return fmt.Sprintf("%q", cut([]byte(s), 64)) }
