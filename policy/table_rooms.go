package policy

import (
	"math"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"
)

func queueTable() codec[Queue] {
	return object(append(queueFields(),
		key("maxHeldBytes", func(q *Queue) *int64 { return &q.MaxHeldBytes }, size(1<<10, 1<<40)),
		key("maxAwaitedBytes", func(q *Queue) *int64 { return &q.MaxAwaited }, size(1<<10, 1<<40)),
		key("maxAwaitedBytesPerTenant", func(q *Queue) *int64 { return &q.MaxAwaitedBy }, size(1<<10, 1<<40)),
		key("price", func(q *Queue) *Price { return &q.Price }, enum(choice[Price]{"tokens", ByTokens}, choice[Price]{"requests", ByRequests})),
		key("headroom", func(q *Queue) *Ratio { return &q.Headroom }, ratioTo(maxPart, false)),
		key("watchdog", func(q *Queue) *Watchdog { return &q.Watchdog }, watchdogTable()),
	)...)
}

// maxPart bounds what may be taken off the top of seats or of the drain rate:
// what is left must serve somebody.
const maxPart Ratio = 0.9

// profileQueueTable has what is judged for each request; price, the bytes
// held and awaited, headroom and the watchdog belong to the line that all profiles share.
func profileQueueTable() codec[Queue] { return object(queueFields()...) }

func queueFields() []field[Queue] {
	retry := object(
		key("limit", func(r *RetryQueue) *time.Duration { return &r.Limit }, duration(0, 10*time.Minute, true)),
		key("length", func(r *RetryQueue) *int { return &r.Length }, whole[int](0, 100_000)),
	)
	return []field[Queue]{
		key("length", func(q *Queue) *Length { return &q.Length }, lengthTable()),
		key("softLimit", func(q *Queue) *Ratio { return &q.SoftLimit }, ratio(true)),
		key("softExempt", func(q *Queue) *[]Class { return &q.SoftExempt }, unique(list(class(), zero[Class], 0, NumClasses))),
		key("perTenant", func(q *Queue) *Ratio { return &q.PerTenant }, ratio(true)),
		key("coldStart", func(q *Queue) *[]int { return &q.ColdStart }, list(whole[int](0, 100_000), zero[int], 0, 32)),
		key("coldStartFor", func(q *Queue) *time.Duration { return &q.ColdStartFor }, duration(0, time.Hour, true)),
		key("retryQueue", func(q *Queue) *RetryQueue { return &q.RetryQueue }, retry),
		key("order", func(q *Queue) *Order { return &q.Order }, orderTable()),
	}
}

func orderTable() codec[Order] {
	return object(
		key("cheapTokens", func(o *Order) *int64 { return &o.CheapTokens }, whole[int64](0, 1_000_000)),
		key("cheapTime", func(o *Order) *time.Duration { return &o.CheapTime }, duration(time.Millisecond, time.Minute, true)),
		key("streaming", func(o *Order) *bool { return &o.Streaming }, boolean()),
		key("ageing", func(o *Order) *time.Duration { return &o.Ageing }, duration(time.Millisecond, 10*time.Second, true)),
	)
}

func watchdogTable() codec[Watchdog] {
	return objectThen(func(d *decoder, _ *yaml.Node, at string, w *Watchdog, _ func(string) bool) {
		if w.Step > w.Max {
			d.failAt(join(at, "step"), formatRatio(w.Step), "must not exceed max, "+formatRatio(w.Max))
		}
	},
		key("after", func(w *Watchdog) *time.Duration { return &w.After }, duration(100*time.Millisecond, time.Hour, true)),
		key("step", func(w *Watchdog) *Ratio { return &w.Step }, ratio(true)),
		key("max", func(w *Watchdog) *Ratio { return &w.Max }, ratio(true)),
	)
}

// lengthTable: a max below the inherited min takes the min along, so that
// {max: 0} alone means "no waiting".
func lengthTable() codec[Length] {
	return objectThen(func(d *decoder, _ *yaml.Node, at string, l *Length, has func(string) bool) {
		if !has("min") {
			l.Min = min(l.Min, l.Max)
		}
		if l.Min > l.Max {
			d.failAt(join(at, "min"), formatNumber(float64(l.Min)), "must not exceed max, "+formatNumber(float64(l.Max)))
		}
	},
		key("intercept", func(l *Length) *float64 { return &l.Intercept }, number(0, 1_000_000)),
		key("slope", func(l *Length) *float64 { return &l.Slope }, number(0, 100_000)),
		key("min", func(l *Length) *int { return &l.Min }, whole[int](0, 100_000)),
		key("max", func(l *Length) *int { return &l.Max }, whole[int](0, 100_000)),
	)
}

func gaugeTable() codec[Gauge] {
	targets := object(
		key("waiting", func(g *Gauge) *float64 { return &g.WaitingTarget }, number(0.001, 100_000)),
		key("kv", func(g *Gauge) *Ratio { return &g.KVTarget }, ratio(true)),
	)
	return object(
		key("smoothing", func(g *Gauge) *[3]float64 { return &g.Smoothing }, smoothing()),
		key("neutral", func(g *Gauge) *Ratio { return &g.Neutral }, ratio(false)),
		key("stalePeriods", func(g *Gauge) *int { return &g.StalePeriods }, whole[int](1, 1000)),
		group("targets", targets),
		key("literal", func(g *Gauge) *bool { return &g.Literal }, boolean()),
		key("coldGap", func(g *Gauge) *time.Duration { return &g.ColdGap }, duration(time.Second, 24*time.Hour, false)),
		key("literalCold", func(g *Gauge) *bool { return &g.LiteralCold }, boolean()),
		key("faultFor", func(g *Gauge) *time.Duration { return &g.FaultFor }, duration(time.Second, 24*time.Hour, false)),
	)
}

// smoothing reads Q2's three weights, which add up to 1: anything else would
// move the pressure by itself.
func smoothing() codec[[3]float64] {
	weights := list(number(0, 1), zero[float64], 3, 3)
	weights.shape.bounds = "3 weights that add up to 1"
	return codec[[3]float64]{
		shape: weights.shape,
		read: func(d *decoder, n *yaml.Node, at string, v *[3]float64) {
			var w []float64
			before := len(d.errs)
			if weights.read(d, n, at, &w); len(d.errs) > before {
				return
			}
			if math.Abs(w[0]+w[1]+w[2]-1) > 1e-9 {
				d.report(n, at, "", "the weights must add up to 1, not "+strconv.FormatFloat(w[0]+w[1]+w[2], 'g', 6, 64))
				return
			}
			*v = [3]float64(w)
		},
		write: func(e *encoder, v *[3]float64) *yaml.Node {
			w := v[:]
			return weights.write(e, &w)
		},
	}
}

func estimateTable() codec[Estimate] {
	return objectThen(func(d *decoder, _ *yaml.Node, at string, e *Estimate, has func(string) bool) {
		if !has("finalBytesPerToken") {
			e.FinalBytesPerToken = max(e.FinalBytesPerToken, e.MaxBytesPerToken)
		}
		if e.MinBytesPerToken > e.BytesPerToken || e.BytesPerToken > e.MaxBytesPerToken {
			d.failAt(join(at, "bytesPerToken"), formatNumber(e.BytesPerToken), "must lie between minBytesPerToken, "+
				formatNumber(e.MinBytesPerToken)+", and maxBytesPerToken, "+formatNumber(e.MaxBytesPerToken))
		}
		if e.FinalBytesPerToken < e.MaxBytesPerToken {
			d.failAt(join(at, "finalBytesPerToken"), formatNumber(e.FinalBytesPerToken), "must not be below maxBytesPerToken, "+formatNumber(e.MaxBytesPerToken))
		}
	},
		key("bytesPerToken", func(e *Estimate) *float64 { return &e.BytesPerToken }, number(0.1, 100)),
		key("minBytesPerToken", func(e *Estimate) *float64 { return &e.MinBytesPerToken }, number(0.1, 100)),
		key("maxBytesPerToken", func(e *Estimate) *float64 { return &e.MaxBytesPerToken }, number(0.1, 100)),
		key("finalBytesPerToken", func(e *Estimate) *float64 { return &e.FinalBytesPerToken }, number(0.1, 1000)),
		key("output", func(e *Estimate) *int64 { return &e.Output }, whole[int64](1, 10_000_000)),
		key("maxOutput", func(e *Estimate) *int64 { return &e.MaxOutput }, whole[int64](1, 10_000_000)),
		key("tenants", func(e *Estimate) *int { return &e.Tenants }, whole[int](16, 10_000_000)),
	)
}

func retryAfterTable() codec[RetryAfter] {
	return object(append(retryAfterFields(),
		key("share", func(r *RetryAfter) *Ratio { return &r.Share }, ratioTo(maxPart, false)),
		key("grace", func(r *RetryAfter) *time.Duration { return &r.Grace }, duration(100*time.Millisecond, 5*time.Minute, false)),
	)...)
}

// profileRetryAfterTable has how a hint is written; its bookings belong to the
// line that all profiles share.
func profileRetryAfterTable() codec[RetryAfter] { return object(retryAfterFields()...) }

func retryAfterFields() []field[RetryAfter] {
	return []field[RetryAfter]{
		key("format", func(r *RetryAfter) *bool { return &r.Fractional }, enum(choice[bool]{"integer", false}, choice[bool]{"fractional", true})),
		key("jitter", func(r *RetryAfter) *Ratio { return &r.Jitter }, ratio(false)),
		key("max", func(r *RetryAfter) *time.Duration { return &r.Max }, duration(time.Second, 24*time.Hour, false)),
	}
}

func retryControlTable() codec[RetryControl] {
	return objectThen(func(d *decoder, _ *yaml.Node, at string, r *RetryControl, _ func(string) bool) {
		if r.Base > r.Max {
			d.failAt(join(at, "base"), formatDuration(r.Base), "must not exceed max, "+formatDuration(r.Max))
		}
	},
		key("disabled", func(r *RetryControl) *bool { return &r.Off }, boolean()),
		key("base", func(r *RetryControl) *time.Duration { return &r.Base }, duration(time.Millisecond, time.Minute, false)),
		key("factor", func(r *RetryControl) *float64 { return &r.Factor }, number(1, 10)),
		key("max", func(r *RetryControl) *time.Duration { return &r.Max }, duration(time.Millisecond, time.Hour, false)),
		key("jitter", func(r *RetryControl) *Ratio { return &r.Jitter }, ratio(false)),
		key("storm", func(r *RetryControl) *int { return &r.Storm }, whole[int](1, 1_000_000)),
	)
}

func meteringTable() codec[Metering] {
	return object(
		key("includeUsage", func(m *Metering) *bool { return &m.IncludeUsage }, boolean()),
		key("maxEvent", func(m *Metering) *int64 { return &m.MaxEvent }, size(1<<10, 64<<20)),
	)
}
