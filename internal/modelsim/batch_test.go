package modelsim_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weirproxy/weir/internal/modelsim"
)

// plain is the batch as its description says it, without any saving.
type plain struct {
	cfg              modelsim.EngineConfig
	waiting, running []*plainSequence
	used             int64
}

type plainSequence struct {
	id, prompt, output, width, read, made int
}

func (s *plainSequence) kv() int64 { return int64(s.prompt + s.output*s.width) }

// step makes one: its length, who got a first token, who is through.
func (p *plain) step() (length time.Duration, first, done []int) {
	budget := p.cfg.PrefillChunk
	for _, s := range p.running {
		budget -= min(budget, s.prompt-s.read)
	}
	for budget > 0 && len(p.waiting) > 0 && len(p.running) < p.cfg.Running && p.used+p.waiting[0].kv() <= p.cfg.KVTokens {
		budget -= min(budget, p.waiting[0].prompt)
		p.used += p.waiting[0].kv()
		p.running = append(p.running, p.waiting[0])
		p.waiting = p.waiting[1:]
	}
	if len(p.running) == 0 {
		return 0, nil, nil
	}
	length = p.cfg.StepBase + time.Duration(len(p.running))*p.cfg.StepPerSequence
	spare := p.cfg.PrefillChunk
	p.running = slices.DeleteFunc(p.running, func(s *plainSequence) bool {
		n := min(s.prompt-s.read, spare)
		s.read, spare = s.read+n, spare-n
		length += time.Duration(n) * p.cfg.PrefillPerToken
		if s.read < s.prompt {
			return false
		}
		if s.made < s.output {
			if s.made++; s.made == 1 {
				first = append(first, s.id)
			}
		}
		if s.made < s.output {
			return false
		}
		p.used -= s.kv()
		done = append(done, s.id)
		return true
	})
	return length, first, done
}

func (p *plain) leave(id int) (read, made int) {
	for _, list := range []*[]*plainSequence{&p.waiting, &p.running} {
		for i, s := range *list {
			if s.id == id {
				if list == &p.running {
					p.used -= s.kv()
				}
				*list = slices.Delete(*list, i, i+1)
				return s.read, s.made
			}
		}
	}
	return -1, -1
}

func ids(list []*modelsim.Sequence) (out []int) {
	for _, s := range list {
		out = append(out, s.Owner.(int))
	}
	slices.Sort(out)
	return out
}

// The batch does in O(changes) what its description does in O(batch).
func TestBatchIsWhatItSays(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 7))
		cfg := exact()
		cfg.Running, cfg.KVTokens, cfg.PrefillChunk = 1+rng.IntN(9), 60+rng.Int64N(200), 1+rng.IntN(40)
		batch, ref := modelsim.NewBatch(cfg, rng), &plain{cfg: cfg}
		var all []*modelsim.Sequence
		over := map[int]bool{}
		var made, read, busy int64
		for range 300 {
			for range rng.IntN(3) {
				s := &modelsim.Sequence{Prompt: rng.IntN(30), Output: rng.IntN(12), Width: 1 + rng.IntN(2), Owner: len(all)}
				batch.Submit(s)
				ref.waiting = append(ref.waiting, &plainSequence{id: len(all), prompt: s.Prompt, output: s.Output, width: s.Width})
				all = append(all, s)
			}
			if i := rng.IntN(len(all) + 1); i < len(all) && rng.IntN(4) == 0 && !over[i] {
				r, m := batch.Leave(all[i])
				if wr, wm := ref.leave(i); r != wr || m != wm {
					t.Fatalf("seed %d: sequence %d left at %d/%d, want %d/%d", seed, i, r, m, wr, wm)
				}
				over[i] = true
				if r2, m2 := batch.Leave(all[i]); r2 != r || m2 != m {
					t.Fatalf("seed %d: leaving again says %d/%d, want %d/%d", seed, r2, m2, r, m)
				}
			}
			want, wantFirst, wantDone := ref.step()
			got := batch.Begin()
			if got != want {
				t.Fatalf("seed %d: step takes %v, want %v", seed, got, want)
			}
			if got == 0 {
				continue
			}
			before := batch.Load()
			first, done := batch.Finish()
			slices.Sort(wantFirst)
			slices.Sort(wantDone)
			if !slices.Equal(ids(first), wantFirst) || !slices.Equal(ids(done), wantDone) {
				t.Fatalf("seed %d: first %v, done %v, want %v, %v", seed, ids(first), ids(done), wantFirst, wantDone)
			}
			for _, id := range wantDone {
				over[id] = true
			}
			load := batch.Load()
			busy += int64(want)
			yielded := int64(0)
			for s := range batch.Yielded() {
				yielded += int64(s.Width)
			}
			if load.Running != len(ref.running) || load.Waiting != len(ref.waiting) || load.KVUsed != ref.used || int64(load.Busy) != busy ||
				load.OutputTokens-before.OutputTokens != yielded {
				t.Fatalf("seed %d: load %+v, want %d running, %d waiting, %d used, %d made", seed, load, len(ref.running), len(ref.waiting), ref.used, yielded)
			}
		}
		for i, s := range all {
			if over[i] {
				r, m := batch.Leave(s)
				read, made = read+int64(r), made+int64(m*s.Width)
			}
		}
		for _, s := range slices.Concat(ref.running, ref.waiting) {
			read, made = read+int64(s.read), made+int64(s.made*s.width)
		}
		if l := batch.Load(); cmp.Or(l.PromptTokens-read, l.OutputTokens-made) != 0 {
			t.Fatalf("seed %d: %+v, the sequences together read %d and made %d", seed, l, read, made)
		}
	}
}

// A machine that shrinks keeps what runs and takes in less.
func TestBatchConfigure(t *testing.T) {
	cfg := exact()
	b := modelsim.NewBatch(cfg, nil)
	for i := range 8 {
		b.Submit(&modelsim.Sequence{Output: 1 + i, Owner: i})
	}
	b.Begin()
	cfg.Running = 2
	b.Configure(cfg)
	for i := range 8 {
		b.Submit(&modelsim.Sequence{Output: 1, Owner: 8 + i})
	}
	for _, running := range []int{7, 6, 5, 4, 3, 2, 1} {
		b.Finish()
		if got := b.Load().Running; got != running {
			t.Errorf("%d run, want %d", got, running)
		}
		b.Begin()
	}
	if l := b.Load(); l.Running != 2 || l.Waiting != 7 {
		t.Errorf("%d run and %d wait, want 2 and 7", l.Running, l.Waiting)
	}
}

// A step of a full batch costs the same however many sequences only yield.
func BenchmarkBatchStep(b *testing.B) {
	cfg := modelsim.EngineConfig{Running: 256, KVTokens: 1 << 30}
	batch := modelsim.NewBatch(cfg, nil)
	spare := make([]modelsim.Sequence, 256)
	for i := range spare {
		spare[i] = modelsim.Sequence{Prompt: 100, Output: 20 + i%160, Width: 1, Owner: i}
		batch.Submit(&spare[i])
	}
	b.ReportAllocs()
	for b.Loop() {
		batch.Begin()
		_, done := batch.Finish()
		for _, s := range done {
			*s = modelsim.Sequence{Prompt: 100, Output: s.Output, Width: 1, Owner: s.Owner}
			batch.Submit(s)
		}
	}
}
