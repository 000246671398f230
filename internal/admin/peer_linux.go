package admin

import (
	"net"
	"syscall"
)

// userOf is the user id of the process at the other end.
func userOf(c *net.UnixConn) (uid uint32, ok bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, false
	}
	err = raw.Control(func(fd uintptr) {
		if cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			uid, ok = cred.Uid, true
		}
	})
	return uid, ok && err == nil
}
