"""OpenTelemetry, from the exporter: its metrics and each start as a trace, over OTLP."""
