// Package examples is the show flat: Envoy configurations and policies that
// start as they stand, embedded so that tests and the demo run the very files
// that users copy.
package examples

import (
	"embed"
	"fmt"
	"net"
	"strconv"

	"sigs.k8s.io/yaml"
)

// Files holds envoy/*.yaml and policies/*.yaml.
//
//go:embed envoy/*.yaml policies/*.yaml
var Files embed.FS

// Tree is a configuration as generic JSON.
type Tree = map[string]any

// Place says where an Envoy configuration of this package meets the machine
// it is tried on.
type Place struct {
	Listen   string            // "127.0.0.1:0" for the first listener
	Admin    string            // path of Envoy's admin socket
	Weir     string            // path of weir's gRPC socket
	Clusters map[string]string // model cluster → host:port; others go to a port where nobody listens
}

// Envoy loads envoy/NAME and moves it to a place; nothing else is changed.
func Envoy(name string, at Place) (Tree, error) {
	raw, err := Files.ReadFile("envoy/" + name)
	if err != nil {
		return nil, err
	}
	var tree Tree
	if err := yaml.UnmarshalStrict(raw, &tree); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	listen, err := socketAddress(at.Listen)
	if err != nil {
		return nil, err
	}
	Set(tree, at.Admin, "admin", "address", "pipe", "path")
	Set(tree, listen, "static_resources", "listeners", 0, "address")
	for _, c := range Get(tree, "static_resources", "clusters").([]any) {
		endpoint, static := Get(c, "load_assignment", "endpoints", 0, "lb_endpoints", 0, "endpoint").(Tree)
		if !static {
			continue // weir serves its endpoints
		}
		name, _ := Get(c, "name").(string)
		if name == "weir" {
			endpoint["address"] = Tree{"pipe": Tree{"path": at.Weir}}
			continue
		}
		target, ok := at.Clusters[name]
		if !ok {
			target = "127.0.0.1:1"
		}
		if endpoint["address"], err = socketAddress(target); err != nil {
			return nil, fmt.Errorf("cluster %s: %w", name, err)
		}
	}
	return tree, nil
}

func socketAddress(hostPort string) (Tree, error) {
	host, p, err := net.SplitHostPort(hostPort)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(p, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("address %q: port: %w", hostPort, err)
	}
	return Tree{"socket_address": Tree{"address": host, "port_value": port}}, nil
}

// Get walks a tree by keys and indexes; nil when a step is missing.
func Get(node any, path ...any) any {
	for _, step := range path {
		switch s := step.(type) {
		case string:
			m, _ := node.(Tree)
			node = m[s]
		case int:
			l, _ := node.([]any)
			if s >= len(l) {
				return nil
			}
			node = l[s]
		}
	}
	return node
}

// Set puts a value into a tree at a path whose parents exist.
func Set(node any, value any, path ...any) {
	parent := Get(node, path[:len(path)-1]...)
	switch last := path[len(path)-1].(type) {
	case string:
		parent.(Tree)[last] = value
	case int:
		parent.([]any)[last] = value
	}
}
