//! OpenAPI schemas of types that are strings in JSON.

/// Describes a type as a string that matches a pattern.
macro_rules! text {
    ($name:ident, $pattern:expr) => {
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                let text = utoipa::openapi::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::String)
                    .pattern(Some($pattern));
                utoipa::openapi::Schema::from(text).into()
            }
        }

        impl utoipa::ToSchema for $name {}
    };
}
pub(crate) use text;
