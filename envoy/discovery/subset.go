package discovery

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Subset is the envoy.lb metadata of an endpoint, by which pools share a
// cluster: an object of strings in JSON, its keys in order, so that equal ones
// are equal strings. "" = none.
type Subset string

// The bounds of one subset, as those of a pool's.
const (
	maxLabels = 64
	maxLabel  = 256 // bytes of a key or a value
)

// SubsetOf writes labels as a Subset. What is not UTF-8 is replaced.
func SubsetOf(labels map[string]string) Subset {
	if len(labels) == 0 {
		return ""
	}
	text, err := json.Marshal(labels)
	if err != nil {
		return "" // strings always marshal
	}
	return Subset(text)
}

// ParseSubset takes a Subset that was written before, such as on disk.
func ParseSubset(text string) (Subset, error) {
	if text == "" {
		return "", nil
	}
	var labels map[string]string
	if err := json.Unmarshal([]byte(text), &labels); err != nil {
		return "", fmt.Errorf("must be an object of strings in JSON (got %q)", text)
	}
	return SubsetOf(labels), nil
}

// Labels are the subset's own; nil for none. The map is the caller's.
func (s Subset) Labels() map[string]string {
	if s == "" {
		return nil
	}
	var labels map[string]string
	_ = json.Unmarshal([]byte(s), &labels) // SubsetOf wrote it
	return labels
}

// with lays the labels of another over those of s.
func (s Subset) with(over Subset) Subset {
	if s == "" || over == "" {
		return max(s, over)
	}
	labels := s.Labels()
	maps.Copy(labels, over.Labels())
	return SubsetOf(labels)
}

// readSubset reads the labels of one host in a file.
func readSubset(n *yaml.Node) (Subset, error) {
	if n.Kind != yaml.MappingNode {
		return "", lineError(n, "subset must be a map of strings, such as {variant: int8}")
	}
	if len(n.Content)/2 > maxLabels {
		return "", lineError(n, fmt.Sprintf("subset must have at most %d entries (got %d)", maxLabels, len(n.Content)/2))
	}
	labels := make(map[string]string, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.Value == "" || !isLabel(key.Value) {
			return "", lineError(key, fmt.Sprintf("a key of subset must have 1 to %d bytes without control characters (got %.60q)", maxLabel, key.Value))
		}
		if _, twice := labels[key.Value]; twice {
			return "", lineError(key, fmt.Sprintf("subset has %.60q twice", key.Value))
		}
		if value.Kind != yaml.ScalarNode || value.Tag != "!!str" || !isLabel(value.Value) {
			return "", lineError(value, fmt.Sprintf("subset.%.60s must be a string of at most %d bytes without control characters (got %.60q): a number is one in quotes", key.Value, maxLabel, value.Value))
		}
		labels[key.Value] = value.Value
	}
	return SubsetOf(labels), nil
}

func isLabel(s string) bool {
	return len(s) <= maxLabel && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}
