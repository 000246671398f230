package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
)

func explainCommand() *cobra.Command {
	var admin, token string
	c := &cobra.Command{
		Use:   "explain [REQUEST-ID]",
		Short: "Show what each room saw of a request",
		Long: "explain asks a running weir for one decision by the id in the answer's x-weir-request-id header,\n" +
			"or for the latest decisions when no id is given.",
		Example: "  weir explain 4f1c0e7a9b2d4c6e8f0a1b2c3d4e5f60\n  weir explain --admin unix:/run/weir/admin.sock",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			query := url.Values{}
			if len(args) == 1 {
				query.Set("request", args[0])
			}
			body, err := adminGet(c.Context(), admin, token, "/debug/explain?"+query.Encode())
			if err != nil {
				return err
			}
			_, err = c.OutOrStdout().Write(body)
			return err
		},
	}
	c.Flags().StringVar(&admin, "admin", "127.0.0.1:9902", "admin `address` of the running weir (host:port or unix:/path)")
	c.Flags().StringVar(&token, "token-file", "", "`file` with the admin token")
	return c
}

// adminGet reads a path of a running weir's admin window.
func adminGet(ctx context.Context, address, tokenFile, path string) ([]byte, error) {
	return adminCall(ctx, address, tokenFile, http.MethodGet, path, nil)
}

// adminCall asks a running weir's admin window; an answer other than 200 is an
// error, with what it says.
func adminCall(ctx context.Context, address, tokenFile, method, path string, body []byte) ([]byte, error) {
	network, target, err := dialled(address)
	if err != nil {
		return nil, usageError{fmt.Errorf("--admin %q: %w", address, err)}
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, target)
		},
	}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, method, "http://weir"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if tokenFile != "" {
		token, err := readToken(tokenFile)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := client.Do(req)
	var asked *url.Error
	if errors.As(err, &asked) {
		err = asked.Err // the URL is of our making
	}
	if err != nil {
		return nil, fmt.Errorf("no weir answers at %s: %w", address, err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", res.Status, complaint(answer))
	}
	return answer, nil
}

// dialled is where an admin address leads.
func dialled(address string) (network, target string, err error) {
	if socket, ok := strings.CutPrefix(address, "unix:"); ok && socket != "" {
		return "unix", socket, nil
	}
	_, port, err := net.SplitHostPort(address)
	if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || n == 0 {
		return "", "", errors.New("must be host:port or unix:/path")
	}
	return "tcp", address, nil
}

// maxToken is the length of an admin token's file, in bytes.
const maxToken = 4 << 10

// readToken reads an admin token as the policy does.
func readToken(file string) (string, error) {
	data, err := readFile(file, maxToken)
	token := strings.TrimSpace(string(data))
	if err == nil && (token == "" || strings.ContainsFunc(token, func(r rune) bool { return !unicode.IsPrint(r) })) {
		err = errors.New("the token must be one line of printable characters")
	}
	if err != nil {
		return "", fmt.Errorf("--token-file %s: %w", file, err)
	}
	return token, nil
}

// complaint is what weir says was wrong, in words; an answer of another form is
// given as it is.
func complaint(answer []byte) string {
	var v struct {
		Error string   `json:"error"`
		Known []string `json:"known"`
	}
	if json.Unmarshal(answer, &v) != nil || v.Error == "" {
		return strings.TrimSpace(string(answer))
	}
	for _, name := range v.Known {
		if !strings.Contains(v.Error, name) {
			return v.Error + " (known: " + strings.Join(v.Known, ", ") + ")"
		}
	}
	return v.Error
}
