package admission

// Reason is the closed list of why a request was decided as it was: metric
// label, x-weir-reason header, audit code.
type Reason uint8
