//! What the kubelet and Prometheus ask, in plain HTTP on a port of its own: `/livez`, `/readyz`, `/metrics`.
//!
//! Served by [`crate::server::serve`] with a [`crate::shutdown::Shutdown`] of its own, so that it answers until everything
//! else has ended.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::registry::Registry;

use crate::readiness::{self, Readiness};

/// What [`prometheus_client`] writes.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone)]
struct Admin {
    readiness: Readiness,
    registry: Arc<Registry>,
}

/// The admin endpoints.
pub fn router(readiness: Readiness, registry: Registry) -> Router {
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(Admin { readiness, registry: Arc::new(registry) })
}

async fn readyz(State(admin): State<Admin>) -> (StatusCode, String) {
    match admin.readiness.state() {
        readiness::State::Ready => (StatusCode::OK, "ok\n".to_owned()),
        readiness::State::Waiting(names) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for: {}\n", names.join(", ")))
        }
        readiness::State::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping\n".to_owned()),
    }
}

async fn metrics(State(admin): State<Admin>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &admin.registry) {
        Ok(()) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("cannot write the metrics: {error}\n")).into_response()
        }
    }
}
