// Package extproc is the hallway: it speaks Envoy's external processing
// protocol (envoy.service.ext_proc.v3, releases 1.36 to 1.40), asks the desk
// for each LLM request, and carries the decision out.
//
// The wire is kept apart from what is decided. The codec turns Envoy's
// messages into ours and back; the conversation is a state machine over those
// messages, without protobuf, clock or goroutine; the server gives it both;
// render looks a refusal up in admission's reason table and writes it down
// (Q7). Packages body and meter read the request and the answer.
//
// What Envoy does, and what follows from it:
//
//   - A clean end of the side stream means "go on", also where the filter
//     fails closed. So a stream whose request is not judged ends by an
//     immediate answer or an error status, in a panic too.
//   - Each message gets one reply of its own kind; two, or another kind, is an
//     error of ours. An override of the message timeout may go ahead of a
//     reply, once and at once; Envoy ignores later ones.
//   - Local replies of Envoy come as response_headers, even while a request
//     message waits for its reply and as the first message of a stream. They
//     are answered at once, the place in line or the seat is given up, and
//     response.code_details says what the breaker may make of it.
//   - The end of a request is the first of: end_of_stream, trailers, a local
//     reply, and any error of Recv; EOF and Canceled mean the same. Whatever
//     comes, a ticket is ended exactly once.
//   - Header values travel in raw_value; a header is overwritten unless asked
//     otherwise. Copies of x-weir-* headers that callers or upstreams send are
//     removed in both directions, and so are ORCA's (load.go).
//
// Kinds with a body to read need request_body_mode BUFFERED; in any other mode
// they are refused as a misconfigured route (503, reported to the operator),
// because a body that is not read whole cannot be judged. gRPC calls, uploads
// and allowed upgrades are decided at their headers, at the API's stated cost.
// Where the response body is not sent to us (mode NONE) the end is seen by the
// trailers or the end of the stream, and usage is the estimate.
//
// Mechanisms: P1, P3, Q7, K1, T8, B6, E2, O4.
package extproc
