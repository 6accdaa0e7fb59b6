SwaggerUIBundle({ url: "openapi.json", dom_id: "#docs", validatorUrl: null, deepLinking: true });
