//! An endpoint: a handler with its path and methods, and what the document says of it.
//!
//! Both come of one registration, so that neither can be forgotten. What the document says is made only when somebody
//! asks for it: all schemas together take megabytes, and a server is rarely asked.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::handler::Handler;
use axum::http::Method;
use axum::routing::MethodRouter;
use utoipa::openapi::path::{HttpMethod, Operation, Paths};
use utoipa::openapi::{Components, OpenApi, RefOr, Schema};
use utoipa_axum::PathItemExt as _;

use crate::Http;

type Schemas = Vec<(String, RefOr<Schema>)>;

/// A handler, where it is reached, and what is said of it.
pub(super) struct Endpoint {
    /// The operation's id: the handler's name.
    id: &'static str,
    path: String,
    methods: Vec<HttpMethod>,
    handler: MethodRouter<Http>,
    tell: fn(&mut Schemas) -> Operation,
}

impl Endpoint {
    /// The endpoint of a handler, of which `T` tells. See [`endpoints!`].
    pub(super) fn of<T, A>(id: &'static str, handler: &impl Handler<A, Http>) -> Self
    where
        T: utoipa::Path + utoipa::__dev::SchemaReferences,
        A: 'static,
    {
        let methods = T::methods();
        let routes = methods.iter().map(HttpMethod::to_method_filter);
        let handler = routes.fold(MethodRouter::new(), |routes, method| routes.on(method, handler.clone()));
        let tell = |schemas: &mut Schemas| {
            T::schemas(schemas);
            T::operation()
        };
        Self { id, path: T::path(), methods, handler, tell }
    }
}

/// The endpoints of handlers that have `#[utoipa::path]`.
macro_rules! endpoints {
    ($($module:ident :: $handler:ident),+ $(,)?) => {
        utoipa_axum::paste! {
            vec![$($crate::endpoint::Endpoint::of::<$module::[<__path_ $handler>], _>(
                stringify!($handler),
                &$module::$handler,
            )),+]
        }
    };
}
pub(super) use endpoints;

/// Where every endpoint is reached.
pub(super) fn router(endpoints: Vec<Endpoint>) -> Router<Http> {
    endpoints
        .into_iter()
        .fold(Router::new(), |router, endpoint| router.route(&endpoint.path, endpoint.handler))
}

/// What is said of every endpoint.
pub(super) fn told(endpoints: Vec<Endpoint>) -> OpenApi {
    let (mut paths, mut components, mut schemas) = (Paths::new(), Components::new(), Schemas::new());
    for endpoint in endpoints {
        let operation = (endpoint.tell)(&mut schemas);
        paths.add_path_operation(&endpoint.path, endpoint.methods, operation);
        // At once: each endpoint tells all that it refers to, most of which others have told.
        components.schemas.extend(schemas.drain(..));
    }
    let mut api = OpenApi::default();
    (api.paths, api.components) = (paths, Some(components));
    api
}

/// The ids of operations, by path and method.
#[derive(Debug, Default)]
pub(super) struct Operations(BTreeMap<String, Vec<(Method, Arc<str>)>>);

impl Operations {
    /// Adds those of `endpoints`.
    pub(super) fn extend(&mut self, endpoints: &[Endpoint]) {
        for endpoint in endpoints {
            let id: Arc<str> = endpoint.id.into();
            let methods = endpoint.methods.iter().map(|method| (method_of(method), id.clone()));
            self.0.entry(endpoint.path.clone()).or_default().extend(methods);
        }
    }

    /// The id of the operation at `path`.
    pub(super) fn id(&self, method: &Method, path: &str) -> Option<&Arc<str>> {
        let method = if method == Method::HEAD { &Method::GET } else { method };
        self.0.get(path)?.iter().find(|(known, _)| known == method).map(|(_, id)| id)
    }
}

fn method_of(method: &HttpMethod) -> Method {
    match method {
        HttpMethod::Get => Method::GET,
        HttpMethod::Post => Method::POST,
        HttpMethod::Put => Method::PUT,
        HttpMethod::Delete => Method::DELETE,
        HttpMethod::Options => Method::OPTIONS,
        HttpMethod::Head => Method::HEAD,
        HttpMethod::Patch => Method::PATCH,
        HttpMethod::Trace => Method::TRACE,
    }
}
