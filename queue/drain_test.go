package queue

import (
	"testing"
	"time"

	"github.com/weirproxy/weir/policy"
)

// near fails unless got is within part of want.
func near(t *testing.T, what string, got, want, part float64) {
	t.Helper()
	if got < want*(1-part) || got > want*(1+part) {
		t.Errorf("%s: %.1f, want %.1f", what, got, want)
	}
}

// free lets n seats of a pool of so many come free at equal distances.
func free(d *drain, n int, pool int64, hold time.Duration, waited bool) {
	for range n {
		d.pass(hold/time.Duration(pool), waited)
		d.freed(hold, pool, waited)
	}
}

// The rate is right at once when waiting begins, however the pool was used
// before; it follows a change of speed within twice the seats; a change of the
// number of seats at once; and a stuck pool with the time that passes.
func TestDrainRate(t *testing.T) {
	const pool = 100
	var d drain
	near(t, "nothing known, a second a seat", d.rate(pool), 100, 0.01)
	free(&d, 20, pool, 200*ms, false)
	near(t, "twenty seats, nobody waited", d.rate(pool), 500, 0.01)
	free(&d, 1000, pool, 200*ms, true)
	near(t, "under load", d.rate(pool), 500, 0.01)
	near(t, "measured", d.measured(), 500, 0.01)
	free(&d, 800, pool, 400*ms, true)
	near(t, "half as fast", d.rate(pool), 250, 0.15)
	free(&d, 5000, pool, 400*ms, true)
	d.resize(0.5)
	near(t, "half the seats", d.rate(pool/2), 125, 0.02)
	free(&d, 2000, pool, 100*ms, false)
	near(t, "a quiet time of faster seats", d.rate(pool), 1000, 0.1)
	free(&d, 5000, pool, 100*ms, true)
	d.pass(10*time.Second, true)
	if r := d.rate(pool); r > 45 {
		t.Errorf("400 seats' memory and 10 s without any: %.1f a second", r)
	}
}

// A class that is refused may have what the others do not ask for, by weight.
func TestClassShares(t *testing.T) {
	weights := [policy.NumClasses]float64{3, 2, 1}
	for _, c := range []struct {
		asked  [policy.NumClasses]float64 // per seat freed
		booked int                        // by critical
		class  policy.Class
		want   float64
	}{
		{[3]float64{0.2, 0.6, 0.4}, 0, policy.Batch, 0.8 / 3},
		{[3]float64{0.2, 0.6, 0.4}, 0, policy.Standard, 0.8 * 2 / 3},
		{[3]float64{0.2, 0.1, 5}, 0, policy.Batch, 0.7},
		{[3]float64{2, 2, 2}, 0, policy.Critical, 0.5},
		{[3]float64{2, 2, 2}, 0, policy.Batch, 1.0 / 6},
		{[3]float64{0.2, 0.6, 0.4}, 1000, policy.Batch, 1.0 / 6},
		{[3]float64{0, 0, 1}, 0, policy.Batch, 1},
	} {
		d := drain{freedSum: 999}
		for i, n := range c.asked {
			d.asked[i] = n * 1000
		}
		booked := [policy.NumClasses]Bookings{{Outstanding: c.booked}}
		near(t, c.class.String(), 1000*d.share(c.class, weights, &booked), 1000*c.want, 1e-9)
	}
}
