package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
)

// handover is a listener whose connections come as file descriptors over a
// socket that this process was started with: weir is at the other end
// (internal/child). Nobody else can connect, and nothing lies in the file
// system. It ends with the socket, and so does the agent: a child does not
// outlive its parent.
type handover struct {
	socket *net.UnixConn
}

// errParentGone is what Accept says once the other end is closed.
var errParentGone = errors.New("who started this agent is gone")

func newHandover(fd uintptr) (*handover, error) {
	file := os.NewFile(fd, "handover")
	if file == nil {
		return nil, fmt.Errorf("fd:%d is not open", fd)
	}
	defer func() { _ = file.Close() }() // FileConn has its own
	c, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("fd:%d: %w", fd, err)
	}
	socket, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, fmt.Errorf("fd:%d is no Unix socket", fd)
	}
	return &handover{socket}, nil
}

// Accept takes the next connection: one byte with one descriptor.
func (h *handover) Accept() (net.Conn, error) {
	for {
		message, rights := make([]byte, 1), make([]byte, syscall.CmsgSpace(4))
		n, m, _, _, err := h.socket.ReadMsgUnix(message, rights)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return nil, err
			}
			return nil, errParentGone
		}
		if n == 0 {
			return nil, errParentGone
		}
		if c := connection(rights[:m]); c != nil {
			return c, nil
		}
	}
}

// connection is what a message hands over; nil = nothing that can be used.
func connection(rights []byte) net.Conn {
	messages, err := syscall.ParseSocketControlMessage(rights)
	if err != nil || len(messages) != 1 {
		return nil
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil
	}
	file := os.NewFile(uintptr(fds[0]), "connection")
	defer func() { _ = file.Close() }() // FileConn has its own
	c, err := net.FileConn(file)
	if err != nil {
		return nil
	}
	return c
}

// Close ends Accept.
func (h *handover) Close() error { return h.socket.Close() }

// Addr is for people.
func (h *handover) Addr() net.Addr { return h.socket.LocalAddr() }
