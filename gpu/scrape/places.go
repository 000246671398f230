package scrape

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"

	"github.com/weirproxy/weir/gpu"
)

// Places says which model endpoints a card serves: by a label of its series,
// else by a file, else all the same.
//
// The file is a YAML map from a card to an endpoint or a list of them; a card
// is named by its ID or as host/index, each with /instance behind it for one
// MIG instance. The longer name counts. The file is read again when it changes.
// It is not safe for concurrent use.
type Places struct {
	fixed gpu.Endpoints
	file  watched
	named map[string]gpu.Endpoints
}

// places is one entry of the file.
type places []string

// UnmarshalYAML reads a name or a list of names.
func (p *places) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		*p = make(places, 1)
		return n.Decode(&(*p)[0])
	}
	var list []string
	if err := n.Decode(&list); err != nil {
		return err
	}
	if len(list) > gpu.MaxEndpoints {
		return fmt.Errorf("line %d: %d endpoints, want at most %d", n.Line, len(list), gpu.MaxEndpoints)
	}
	*p = list
	return nil
}

// NewPlaces reads the file, if there is one.
func NewPlaces(fixed, file string) (*Places, error) {
	p := &Places{fixed: gpu.EndpointsOf(fixed), file: watched{path: file, most: maxPlaces}}
	if err := p.Refresh(); err != nil {
		return nil, fmt.Errorf("endpointsFile: %w", err)
	}
	return p, nil
}

// maxPlaces bounds the file, in bytes.
const maxPlaces = 1 << 20

// Refresh follows the file. On an error what was known stays.
func (p *Places) Refresh() error {
	text, changed, err := p.file.read()
	if err != nil || !changed {
		return err
	}
	var named map[string]places
	dec := yaml.NewDecoder(bytes.NewReader(text))
	if err := dec.Decode(&named); err != nil && !errors.Is(err, io.EOF) {
		return p.file.spoil(fmt.Errorf("%s: %w", p.file.path, err))
	}
	p.named = make(map[string]gpu.Endpoints, len(named))
	for card, names := range named {
		p.named[card] = gpu.EndpointsOf(names...)
	}
	return nil
}

// Of are the endpoints of a card; labels is what its series name.
func (p *Places) Of(d *gpu.Card, labels ...string) gpu.Endpoints {
	if told := gpu.EndpointsOf(labels...); told != (gpu.Endpoints{}) {
		return told
	}
	if len(p.named) > 0 {
		keys := []string{d.ID, d.Host + "/" + d.Index}
		if d.Instance != "" {
			keys = []string{keys[0] + "/" + d.Instance, keys[1] + "/" + d.Instance, keys[0], keys[1]}
		}
		for _, key := range keys {
			if e := p.named[key]; e != (gpu.Endpoints{}) {
				return e
			}
		}
	}
	return p.fixed
}
