package discovery

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// parseList reads a file of endpoints: a YAML list whose items are ip:port or
// a map of address, health, weight and subset. An error names file and line. An empty
// file is an error (it is what a writer that died leaves); no endpoints are
// said by [].
func parseList(file string, data []byte) ([]Endpoint, error) {
	docs, err := documents(file, data)
	if err != nil {
		return nil, err
	}
	if len(docs) != 1 {
		return nil, fmt.Errorf("%s: must be one YAML list (got %d documents)", file, len(docs))
	}
	root := docs[0]
	if root.Kind != yaml.SequenceNode {
		return nil, at(file, root, "must be a list of ip:port, with health, weight and subset where wanted; [] says that there are none")
	}
	if n := len(root.Content); n > maxEndpoints {
		return nil, at(file, root, fmt.Sprintf("must have at most %d endpoints (got %d)", maxEndpoints, n))
	}
	list := make([]Endpoint, 0, len(root.Content))
	first := make(map[netip.AddrPort]int, len(root.Content))
	for _, n := range root.Content {
		e, err := item(n)
		if err != nil {
			return nil, fmt.Errorf("%s:%w", file, err)
		}
		if line, twice := first[e.Address]; twice {
			return nil, at(file, n, fmt.Sprintf("address %s stands on line %d too", e.Address, line))
		}
		first[e.Address] = n.Line
		list = append(list, e)
	}
	return list, nil
}

// documents splits a stream of YAML (or JSON) documents. Empty ones are left
// out; a stream of none is an error.
func documents(file string, data []byte) ([]*yaml.Node, error) {
	if n := bytes.Count(data, []byte("\n")) + bytes.Count(data, []byte(",")); n > maxMarks {
		return nil, fmt.Errorf("%s: must have at most %d lines and commas (got %d)", file, maxMarks, n)
	}
	var docs []*yaml.Node
	for dec := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if doc.Kind == yaml.DocumentNode && len(doc.Content) == 1 && doc.Content[0].Tag != "!!null" {
			docs = append(docs, doc.Content[0])
		}
	}
	if len(docs) == 0 {
		return nil, fmt.Errorf("%s: is empty", file)
	}
	return docs, nil
}

func at(file string, n *yaml.Node, message string) error {
	return fmt.Errorf("%s:%d: %s", file, n.Line, message)
}

// item reads one endpoint; its errors begin with the line.
func item(n *yaml.Node) (Endpoint, error) {
	var e Endpoint
	switch n.Kind {
	case yaml.ScalarNode:
		return e, setAddress(&e, n)
	case yaml.MappingNode:
	default:
		return e, lineError(n, "must be ip:port or a map of address, health, weight and subset")
	}
	seen := make(map[string]bool)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if seen[key.Value] {
			return e, lineError(key, key.Value+" stands twice")
		}
		seen[key.Value] = true
		if err := setField(&e, key, value); err != nil {
			return e, err
		}
	}
	if !seen["address"] {
		return e, lineError(n, "address is missing")
	}
	return e, nil
}

func setField(e *Endpoint, key, value *yaml.Node) error {
	switch key.Value {
	case "address":
		return setAddress(e, value)
	case "health":
		h, err := ParseHealth(value.Value)
		if err != nil {
			return lineError(value, "health "+err.Error())
		}
		e.Health = h
	case "weight":
		w, err := strconv.ParseUint(value.Value, 10, 32)
		if err != nil || w < 1 || w > maxWeight {
			return lineError(value, fmt.Sprintf("weight must be a whole number from 1 to %d (got %.60q)", maxWeight, value.Value))
		}
		e.Weight = uint32(w)
	case "subset":
		s, err := readSubset(value)
		if err != nil {
			return err
		}
		e.Subset = s
	default:
		return lineError(key, fmt.Sprintf("%.60q is no key: the keys are address, health, weight and subset", key.Value))
	}
	return nil
}

func setAddress(e *Endpoint, n *yaml.Node) error {
	a, err := netip.ParseAddrPort(n.Value)
	if err != nil || a.Port() == 0 || n.Kind != yaml.ScalarNode || a.Addr().Zone() != "" {
		return lineError(n, fmt.Sprintf("address must be ip:port (got %.60q): EDS takes no names", n.Value))
	}
	e.Address = plain(a)
	return nil
}

// plain writes an IPv4 address in IPv6 clothes as IPv4, so that one host has
// one name.
func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

func lineError(n *yaml.Node, message string) error {
	return fmt.Errorf("%d: %s", n.Line, message)
}
