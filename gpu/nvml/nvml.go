// Package nvml reads the GPUs of this machine through NVML, the driver's own
// library: the fallback of cmd/weir-gpu-agent where there is no DCGM (Q3).
//
// It stands on github.com/NVIDIA/go-nvml, needs cgo and Linux, and loads
// libnvidia-ml.so.1 when it is opened; without cgo, Open says so (library.ErrNoCgo).
// As with gpu/dcgm, a symbol that the library lacks would end the process: each
// row of the table names its own, and a row whose symbol is not there is
// missing. Calls may hang: gpu/library keeps them away from the caller.
//
// NVML knows less than DCGM: no profiling ratios (Active, SM, Tensor, DRAM),
// and of a MIG instance its size and memory alone. An XID error is known if it came
// while this package watched; 0 = none so far.
//
// Invariants: a value that NVML does not support or that is out of its row's
// bounds is missing, never a number; a GPU's own utilisation is missing while
// MIG is on; a GPU that cannot be read is a card without values, and costs no
// other; a lookup of PCIe traffic takes NVML 20 ms for each direction.
//
// Never run on a real GPU: the tests run against go-nvml's mock servers.
// Unproved are so XID events of a driver and how a lost GPU answers.
package nvml
