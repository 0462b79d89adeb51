package server

import (
	_ "embed"

	"github.com/labstack/echo/v4"
)

// openAPI is the public interface, for programs. A test holds it against the
// routes and the catalogue.
//
//go:embed openapi.yaml
var openAPI []byte

var openAPIPage = newPage("application/yaml", "", openAPI)

func serveOpenAPI(c echo.Context) error { return openAPIPage.serve(c) }
