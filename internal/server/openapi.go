package server

import (
	_ "embed"
	"net/http"

	"github.com/labstack/echo/v4"
)

// openAPI is the public interface, for programs. A test holds it against the
// routes and the catalogue.
//
//go:embed openapi.yaml
var openAPI []byte

func serveOpenAPI(c echo.Context) error {
	return c.Blob(http.StatusOK, "application/yaml", openAPI)
}
