SwaggerUIBundle({
  url: "openapi.yaml",
  dom_id: "#page",
  validatorUrl: null, // it would send the interface to another host
  defaultModelsExpandDepth: -1,
  docExpansion: "full",
  // There is one server to try: the one that the page came from.
  plugins: [() => ({ components: { ServersContainer: () => null } })],
});
