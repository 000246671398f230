package policy

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Option changes how a policy is loaded.
type Option func(*decoder)

// WithoutSecrets leaves the files of secrets unread: to check a policy on a
// machine that does not have them. Such a policy cannot serve.
func WithoutSecrets() Option { return func(d *decoder) { d.secrets = false } }

// LoadFile reads and checks a policy file. An error is Errors, or says why
// the file cannot be read.
func LoadFile(path string, options ...Option) (*Policy, error) {
	f, err := openPlain(path)
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	return Load(path, data, options...)
}

// Load reads and checks a policy. name stands in errors, and relative file
// names in the policy are relative to its directory. The error is Errors: all
// violations at once, in the order of the file. Secrets are read from their
// files.
func Load(name string, data []byte, options ...Option) (*Policy, error) {
	root, wrong := parseDocument(name, data)
	if wrong != nil {
		return nil, Errors{*wrong}
	}
	d := newDecoder(name, filepath.Dir(name), true)
	for _, o := range options {
		o(d)
	}
	p := base()
	p.dir = d.dir
	d.place("", root)
	sections().read(d, root, "", p)
	raw := *p
	p.complete()
	d.readProfiles(p, &raw)
	if follow(root).Kind == yaml.MappingNode {
		d.noteUnread()
		d.check(p)
	}
	if err := d.result(); err != nil {
		return nil, err
	}
	return p.seal(), nil
}

// readProfiles lays each profile over the base as it was read, so that what
// follows from other values follows from the profile's.
func (d *decoder) readProfiles(p, raw *Policy) {
	table := profileSections()
	for _, name := range slices.Sorted(maps.Keys(d.profiles)) {
		n := d.profiles[name]
		at := join("profiles", name)
		d.place(at, n)
		if !isScope(name) {
			d.report(n, at, name, "the name "+scopeRule)
			continue
		}
		q := *raw
		q.profile = name
		d.profile = at
		table.read(d, n, at, &q)
		d.profile = ""
		q.complete()
		if p.profiles == nil {
			p.profiles = make(map[string]*Policy)
		}
		p.profiles[name] = &q
	}
}

// seal makes the look-up tables and the hash. Nothing changes afterwards.
func (p *Policy) seal() *Policy {
	p.Finish()
	p.Hash = p.digest()
	for _, q := range p.profiles {
		q.Hash = p.Hash
		q.index = p.index // a profile sets nothing that it is made of
	}
	p.notes = notesOf(p)
	return p
}

// digest is the hash of what Dump writes: of its values rather than of its
// text, which would cost fifty times the memory of the policy.
func (p *Policy) digest() string {
	h := sha256.New()
	var room []byte
	var add func(n *yaml.Node)
	add = func(n *yaml.Node) {
		room = append(room[:0], byte(n.Kind))
		for _, part := range [2]string{n.Tag, n.Value} {
			room = append(binary.AppendUvarint(room, uint64(len(part))), part...)
		}
		room = binary.AppendUvarint(room, uint64(len(n.Content)))
		h.Write(room)
		for _, child := range n.Content {
			add(child)
		}
	}
	add(sections().write(&encoder{dir: p.dir}, p))
	return hex.EncodeToString(h.Sum(nil))[:12]
}

// Dump writes the policy as YAML with every value that is in force, profiles
// as they are once merged. Secrets are written as the names of their files.
// Loading it under the same name gives an equal policy.
func (p *Policy) Dump() []byte {
	root := sections().write(&encoder{dir: p.dir}, p)
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil { // a tree of plain values: cannot be
		return []byte("# " + err.Error() + "\n")
	}
	return b.Bytes()
}
