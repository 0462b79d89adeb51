package programs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
)

// Answers returns nil when a program answers 200 at a URL, else what it says instead.
func Answers(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	reason, err := io.ReadAll(io.LimitReader(response.Body, 4096))
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d: %s", response.StatusCode, bytes.TrimSpace(reason))
	}
	return nil
}
