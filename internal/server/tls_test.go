package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// A pemPair is a certificate, which is its own authority, and its key.
type pemPair struct{ cert, key []byte }

// newPair makes a pair for plants.example until a time.
func newPair(t *testing.T, until time.Time) pemPair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "plants.example"},
		DNSNames: []string{"plants.example"}, NotBefore: until.Add(-48 * time.Hour), NotAfter: until, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pemPair{pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})}
}

// files are where a test keeps a pair.
type files struct{ cert, key string }

func newFiles(t *testing.T, p pemPair) files {
	t.Helper()
	f := files{filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")}
	write(t, f.cert, p.cert)
	write(t, f.key, p.key)
	return f
}

func write(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// withTLS gives a server a certificate. It returns the files and a client's configuration.
func withTLS(t *testing.T, c *Config) (files, *tls.Config) {
	t.Helper()
	pair := newPair(t, time.Now().Add(24*time.Hour))
	f := newFiles(t, pair)
	certificate, err := LoadCertificate(f.cert, f.key)
	if err != nil {
		t.Fatal(err)
	}
	c.Certificate = certificate
	return f, &tls.Config{ServerName: "plants.example", RootCAs: trusting(pair)}
}

func trusting(pairs ...pemPair) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, p := range pairs {
		pool.AppendCertsFromPEM(p.cert)
	}
	return pool
}

// tlsClient returns a client of a server that speaks TLS.
func tlsClient(t *testing.T, l *pipeListener, config *tls.Config, http2 bool) *http.Client {
	t.Helper()
	transport := &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			conn, _, err := l.connect()
			return conn, err
		},
		TLSClientConfig:   config.Clone(),
		ForceAttemptHTTP2: http2,
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func deleteOver(t *testing.T, c *http.Client, body io.Reader) (*http.Response, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, "https://plants.example/plants/1", body)
	if err != nil {
		return nil, err
	}
	name, value, _ := strings.Cut(asAlice, ": ")
	request.Header.Set(name, value)
	answer, err := c.Do(request)
	if err != nil {
		return nil, err
	}
	io.Copy(io.Discard, answer.Body)
	answer.Body.Close()
	return answer, nil
}

func TestTLSVersionsOfClients(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		version uint16
		http2   bool
		want    string
		body    string
	}{
		{"1.3 and HTTP/2", tls.VersionTLS13, true, "HTTP/2.0", ""},
		{"1.3 and HTTP/2 with a body", tls.VersionTLS13, true, "HTTP/2.0", "{}"},
		{"1.2 and HTTP/1.1", tls.VersionTLS12, false, "HTTP/1.1", ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := testConfig()
			_, trust := withTLS(t, &c)
			s := run(t, c)
			trust.MaxVersion = tt.version
			client := tlsClient(t, s.public, trust, tt.http2)
			for range 2 {
				var body io.Reader
				if tt.body != "" {
					body = io.NopCloser(strings.NewReader(tt.body)) // of unknown length
				}
				answer, err := deleteOver(t, client, body)
				if err != nil || answer.StatusCode != http.StatusNoContent || answer.Proto != tt.want || answer.TLS.Version != tt.version {
					t.Errorf("%s: %v, %v; want 204 by %s", tt.name, answer, err, tt.want)
				}
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		c := testConfig()
		_, trust := withTLS(t, &c)
		s := run(t, c)
		trust.MinVersion, trust.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
		if err := tls.Client(s.public.dial(t), trust).HandshakeContext(t.Context()); err == nil {
			t.Error("a client connected with TLS 1.1, want 1.2 at least")
		}
		// One connection of HTTP/2 can't hold the memory of hundreds of requests.
		trust.MaxVersion, trust.NextProtos = 0, []string{"h2"}
		conn := tls.Client(s.public.dial(t), trust)
		if _, err := io.WriteString(conn, http2.ClientPreface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
			t.Fatal(err)
		}
		frame, err := http2.NewFramer(conn, conn).ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := frame.(*http2.SettingsFrame).Value(http2.SettingMaxConcurrentStreams); got != maxStreams {
			t.Errorf("the server allows %d requests at a time on a connection, want %d", got, maxStreams)
		}
		if a := send(t, s.public.dial(t), request{method: "GET", target: "/docs"}); a.status != http.StatusBadRequest {
			t.Errorf("plain HTTP: %d, want 400", a.status)
		}
		if a := send(t, s.admin.dial(t), request{method: "GET", target: "/livez"}); a.status != http.StatusOK {
			t.Errorf("plain HTTP by an operator: %d, want 200", a.status)
		}
	})
}

// Files change one after the other. Each new connection gets a whole pair that is valid,
// and each problem is logged once.
func TestCertificateIsReplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		until := time.Now().Add(24 * time.Hour)
		first, second, stray, expired := newPair(t, until), newPair(t, until), newPair(t, until), newPair(t, time.Now().Add(-time.Hour))
		f := newFiles(t, first)
		c, err := LoadCertificate(f.cert, f.key)
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		c.config(slog.New(slog.NewTextHandler(&log, nil)))
		const kept, replaced, renew = "was not replaced", "was replaced", "was not renewed"
		for _, step := range []struct {
			name      string
			after     time.Duration
			cert, key []byte
			logged    string // empty: nothing
			serves    []byte
		}{
			{"the same", 0, first.cert, first.key, "", first.cert},
			{"another key", 0, first.cert, stray.key, kept, first.cert},
			{"a new pair", 0, second.cert, second.key, replaced, second.cert},
			{"another key again", 0, second.cert, stray.key, kept, second.cert},
			{"another certificate", 0, first.cert, second.key, "", second.cert}, // the same problem
			{"the pair that is served", 0, second.cert, second.key, "", second.cert},
			{"nothing", 0, []byte("nothing"), second.key, kept, second.cert},
			{"an expired pair", 0, expired.cert, expired.key, kept, second.cert},
			{"good again", 0, second.cert, second.key, "", second.cert},
			{"a tenth of its time left", 20 * time.Hour, second.cert, second.key, renew, second.cert},
			{"expired", 9 * time.Hour, second.cert, second.key, "", second.cert},
		} {
			time.Sleep(step.after)
			write(t, f.cert, step.cert)
			write(t, f.key, step.key)
			log.Reset()
			var pair *tls.Certificate
			for range 3 {
				time.Sleep(reloadEvery)
				if pair, err = c.get(nil); err != nil {
					t.Fatal(err)
				}
			}
			if block, _ := pem.Decode(step.serves); !bytes.Equal(pair.Certificate[0], block.Bytes) {
				t.Errorf("%s: another certificate is served than it should be", step.name)
			}
			want := map[bool]int{true: 1}[step.logged != ""]
			if got := strings.Count(log.String(), "\n"); got != want || !strings.Contains(log.String(), step.logged) {
				t.Errorf("%s: the log has %q, want %d line with %q", step.name, log.String(), want, step.logged)
			}
		}
	})
}

func TestLoadCertificateErrors(t *testing.T) {
	t.Parallel()
	good, other := newPair(t, time.Now().Add(time.Hour)), newPair(t, time.Now().Add(time.Hour))
	late := time.Now().Add(72 * time.Hour)
	for name, tt := range map[string]struct {
		files files
		want  string
	}{
		"no certificate": {files{"/nonexistent/cert.pem", "/nonexistent/key.pem"}, "the certificate for TLS can't be read: open /nonexistent/cert.pem: no such file or directory"},
		"no key":         {files{newFiles(t, good).cert, "/nonexistent/key.pem"}, "the key for TLS can't be read: open /nonexistent/key.pem: no such file or directory"},
		"wrong key":      {newFiles(t, pemPair{good.cert, other.key}), " are not a certificate and its key: tls: private key does not match public key"},
		"no PEM":         {newFiles(t, pemPair{[]byte("x"), good.key}), " are not a certificate and its key: tls: failed to find any PEM data in certificate input"},
		"expired":        {newFiles(t, newPair(t, time.Now().Add(-time.Minute))), ": renew it"},
		"not yet":        {newFiles(t, newPair(t, late)), " is not valid before " + late.Add(-48*time.Hour).UTC().Format(time.RFC3339)},
	} {
		_, err := LoadCertificate(tt.files.cert, tt.files.key)
		if err == nil || !strings.HasSuffix(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line that ends with %q", name, err, tt.want)
		}
	}
}
